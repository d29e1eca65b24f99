/*
 * nvidia-smi of the simulated driver: reads the command line.
 *
 * NB: it runs in containers, in the root of a simulated machine (whose libc lies in /usr/lib/simhost), and with the
 * machine's root in SIMHOST_ROOT where chroot is not allowed.
 */
#include "smi.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char usage[] =
	"NVIDIA System Management Interface of the simulated driver\n\n"
	"    nvidia-smi [OPTION1 [ARG1]] [OPTION2 [ARG2]] ...\n\n"
	"    -h,   --help                Print this text.\n"
	"    -L,   --list-gpus           List each GPU and MIG device with its UUID.\n"
	"    (no option)                 Print the table of GPUs and processes.\n"
	"    -i,   --id=                 Only these GPUs: indices, UUIDs or PCI addresses, separated by commas.\n"
	"    -l,   --loop=               Repeat every so many seconds, until Ctrl-C.\n"
	"    -lms, --loop-ms=            Repeat every so many milliseconds.\n"
	"    -f,   --filename=           Print to this file.\n\n"
	"    -q,   --query               Print all that is known of each GPU.\n"
	"    -x,   --xml-format          With -q as XML.\n"
	"    -d,   --display=            With -q only these sections: MEMORY, UTILIZATION, ECC, TEMPERATURE, POWER, CLOCK,\n"
	"                                COMPUTE, PIDS, PERFORMANCE, ROW_REMAPPER, MIG.\n\n"
	"    --query-gpu=                Fields of each GPU; --help-query-gpu lists them.\n"
	"    --query-compute-apps=       Fields of each process; --help-query-compute-apps lists them.\n"
	"    --format=                   csv, then noheader and nounits as you like, separated by commas.\n\n"
	"    -pm,  --persistence-mode=   0 or 1.\n"
	"    -c,   --compute-mode=       0 or DEFAULT, 2 or PROHIBITED, 3 or EXCLUSIVE_PROCESS.\n"
	"    -mig, --multi-instance-gpu= 0 or 1.\n"
	"    -r,   --gpu-reset           Reset GPUs that no process uses; -i chooses them.\n\n"
	"    dmon      Figures of GPUs, a line for each; dmon -h.\n"
	"    pmon      Figures of processes, a line for each; pmon -h.\n"
	"    nvlink -e Errors of each NVLink.\n"
	"    topo -m   How GPUs are connected.\n"
	"    mig       GPU instances: -lgip, -lgipp, -lgi, -cgi PROFILES [-C], -dgi; compute instances: -lcip, -lci,\n"
	"              -cci [PROFILES], -dci; -gi IDS and -ci IDS choose instances.\n\n"
	"Exit codes: 0, 2 wrong usage, 3 not supported by the GPU, 4 no permission, 6 no such GPU, 9 the driver is not loaded,\n"
	"12 NVML is not there, 15 the GPU is lost.\n";

void refuse(const char *option)
{
	printf("Option \"%s\" is not recognized. Please run 'nvidia-smi -h'.\n\n", option);
}

struct wanted {
	const char *gpus, *query_gpu, *query_apps, *format, *sections, *persistence, *mig, *mode, *file, *loop, *loop_ms;
	bool list, query, xml, reset, help, help_gpu, help_apps, version;
};

struct option {
	const char *names[3];
	size_t value; /* where its argument goes in struct wanted, 0 for none */
	size_t flag;
};
#define AT(field) offsetof(struct wanted, field) + 1
static const struct option options[] = {
	{{"-i", "--id", NULL}, AT(gpus), 0},
	{{"-L", "--list-gpus", NULL}, 0, AT(list)},
	{{"-q", "--query", NULL}, 0, AT(query)},
	{{"-x", "--xml-format", NULL}, 0, AT(xml)},
	{{"-d", "--display", NULL}, AT(sections), 0},
	{{"--query-gpu", NULL, NULL}, AT(query_gpu), 0},
	{{"--query-compute-apps", NULL, NULL}, AT(query_apps), 0},
	{{"--format", NULL, NULL}, AT(format), 0},
	{{"-pm", "--persistence-mode", NULL}, AT(persistence), 0},
	{{"-mig", "--multi-instance-gpu", NULL}, AT(mig), 0},
	{{"-c", "--compute-mode", NULL}, AT(mode), 0},
	{{"-r", "--gpu-reset", NULL}, 0, AT(reset)},
	{{"-f", "--filename", NULL}, AT(file), 0},
	{{"-l", "--loop", NULL}, AT(loop), 0},
	{{"-lms", "--loop-ms", NULL}, AT(loop_ms), 0},
	{{"-h", "--help", NULL}, 0, AT(help)},
	{{"--help-query-gpu", NULL, NULL}, 0, AT(help_gpu)},
	{{"--help-query-compute-apps", NULL, NULL}, 0, AT(help_apps)},
	{{"--version", NULL, NULL}, 0, AT(version)},
};

static const struct option *find(const char *word, size_t length)
{
	for (size_t i = 0; i < sizeof options / sizeof *options; i++)
		for (const char *const *name = options[i].names; *name; name++)
			if (strlen(*name) == length && !strncmp(*name, word, length))
				return &options[i];
	return NULL;
}

/* Reads --name=value, --name value and -n value. */
static bool read_options(int argc, char **argv, struct wanted *wanted)
{
	for (int i = 1; i < argc; i++) {
		const char *equals = strchr(argv[i], '=');
		const struct option *option = find(argv[i], equals ? (size_t)(equals - argv[i]) : strlen(argv[i]));
		const char *value = equals ? equals + 1 : NULL;
		/* NB: how often to repeat may be left out. */
		bool given = value || (i + 1 < argc && argv[i + 1][0] != '-');
		if (!option || (option->flag && value) || (option->value && !given && option->value != AT(loop))) {
			refuse(argv[i]);
			return false;
		}
		if (option->flag)
			*(bool *)((char *)wanted + option->flag - 1) = true;
		else
			*(const char **)((char *)wanted + option->value - 1) = value ? value : given ? argv[++i] : "5";
	}
	return true;
}

static int once(const struct wanted *wanted)
{
	if (wanted->persistence)
		return set_mode('p', wanted->persistence);
	if (wanted->mig)
		return set_mode('m', wanted->mig);
	if (wanted->mode)
		return set_mode('c', wanted->mode);
	if (wanted->reset)
		return reset_gpus();
	if (wanted->list)
		return list_gpus();
	if (wanted->query_gpu)
		return query_gpus(wanted->query_gpu, wanted->format);
	if (wanted->query_apps)
		return query_processes(wanted->query_apps, wanted->format);
	if (wanted->query)
		return show_report(wanted->sections ? wanted->sections : "", wanted->xml);
	return show_table();
}

static int run(const struct wanted *wanted)
{
	long wait_ms = wanted->loop_ms ? atol(wanted->loop_ms) : wanted->loop ? 1000 * atol(wanted->loop) : 0;
	for (;;) {
		int code = once(wanted);
		if (code != EXIT_OK || wait_ms <= 0)
			return code;
		fflush(stdout);
		usleep((useconds_t)wait_ms * 1000);
	}
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		int (*run)(int, char **);
	} verbs[] = {{"pmon", monitor_processes}, {"dmon", monitor_devices}, {"topo", show_topology}, {"mig", mig_command}, {"nvlink", nvlink_command}};
	struct wanted wanted = {.gpus = ""};
	for (size_t i = 0; argc > 1 && i < sizeof verbs / sizeof *verbs; i++)
		if (!strcmp(argv[1], verbs[i].name))
			return verbs[i].run(argc - 1, argv + 1);
	if (!read_options(argc, argv, &wanted))
		return EXIT_INVALID;
	if (wanted.xml && !wanted.query)
		return refuse("-x"), EXIT_INVALID;
	if (wanted.help)
		return fputs(usage, stdout) < 0;
	if (wanted.help_gpu || wanted.help_apps)
		return list_fields(wanted.help_apps), EXIT_OK;
	if (wanted.file && !freopen(wanted.file, "w", stdout))
		return perror(wanted.file), EXIT_OTHER;
	int code = open_nvml();
	if (code == EXIT_OK && wanted.version)
		return printf("NVIDIA-SMI version  : %s\nNVML version        : %s\nDRIVER version      : %s\nCUDA Version        : %d.%d\n",
			      node.driver, node.library, node.driver, node.cuda / 1000, node.cuda % 1000 / 10) < 0;
	if (code == EXIT_OK)
		code = choose_gpus(wanted.gpus);
	return code == EXIT_OK ? run(&wanted) : code;
}
