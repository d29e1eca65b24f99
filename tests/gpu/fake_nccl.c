// Plays NCCL for the test of the harness: two processes sum floats in a file that both map.
// FAKE_NCCL_REFUSES: refuse the programs as NCCL refuses two on one GPU.
#include <dlfcn.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MOST (4 << 20) // bytes of a rank

typedef struct { char internal[128]; } Id;
typedef struct { atomic_int given[2], taken[2]; char data[2][MOST]; } Meeting;
typedef struct { Meeting *meeting; char path[128]; int rank, round; } Communicator;

static int (*to_host)(void *, unsigned long long, size_t);
static int (*to_device)(unsigned long long, const void *, size_t);

int ncclGetUniqueId(Id *id)
{
    snprintf(id->internal, sizeof id->internal, "/tmp/fake-nccl-XXXXXX");
    int file = mkstemp(id->internal);
    return file < 0 || ftruncate(file, sizeof(Meeting)) || close(file);
}

int ncclCommInitRank(Communicator **out, int ranks, Id id, int rank)
{
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW);
    if (getenv("FAKE_NCCL_REFUSES"))
        return unlink(id.internal), 5;
    to_host = (int (*)(void *, unsigned long long, size_t))dlsym(cuda, "cuMemcpyDtoH_v2");
    to_device = (int (*)(unsigned long long, const void *, size_t))dlsym(cuda, "cuMemcpyHtoD_v2");
    Communicator *made = calloc(1, sizeof *made);
    int file = open(id.internal, O_RDWR);
    if (file < 0 || ranks != 2)
        return 2;
    made->meeting = mmap(NULL, sizeof(Meeting), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    memcpy(made->path, id.internal, sizeof made->path);
    made->rank = rank;
    *out = made;
    return 0;
}

static void meet(atomic_int *counts, int rank, int round)
{
    atomic_store(&counts[rank], round);
    while (atomic_load(&counts[!rank]) < round)
        usleep(100);
}

int ncclAllReduce(void *from, void *to, size_t count, int type, int op, Communicator *c, void *stream)
{
    Meeting *m = c->meeting;
    size_t size = count * sizeof(float);
    float *sum = malloc(size);
    if (size > MOST || type != 7 || op != 0 || to_host(m->data[c->rank], (unsigned long long)from, size))
        return 4;
    c->round++;
    meet(m->given, c->rank, c->round);
    for (size_t i = 0; i < count; i++)
        sum[i] = ((float *)m->data[0])[i] + ((float *)m->data[1])[i];
    meet(m->taken, c->rank, c->round);
    int failed = to_device((unsigned long long)to, sum, size);
    free(sum);
    return failed ? 1 : 0;
}

int ncclCommDestroy(Communicator *c)
{
    unlink(c->path);
    free(c);
    return 0;
}
