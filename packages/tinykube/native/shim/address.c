/*
 * The pods of a machine share its network. So that two of them can listen on the same port, servers of a container with
 * the word `address` listen on the address of its pod: a bind of all addresses becomes a bind of that one. So that a
 * server sees which pod its client is, connections to other addresses of the loopback network begin at that address.
 *
 * The kernel stops each bind and connect of the container's processes and asks the shim (a seccomp filter with a
 * listener). For a bind the shim writes the pod's address into the caller's memory; before a connect it binds the
 * caller's socket, if that is bound to none. Then it lets the call go on. A port that the kernel is to choose, and an
 * address that the program names itself, stay as they are. A call whose memory cannot be read or written stays, too.
 */
#include "shim.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#if defined(__x86_64__)
#define OWN_ARCHITECTURE AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define OWN_ARCHITECTURE AUDIT_ARCH_AARCH64
#endif

static int install_filter(void)
{
    struct sock_filter words[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, OWN_ARCHITECTURE, 0, 4),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_bind, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_connect, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof words / sizeof *words, words};
    return (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &program);
}

/* In the container: binds and connects are stopped from here on; the other end of `socket` gets the listener. */
void stop_binds(int socket)
{
    int listener = install_filter();
    if (listener < 0 && errno == EACCES && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0)
        listener = install_filter(); /* of an ordinary user the kernel wants that first */
    if (listener < 0)
        fail("watch binds: %s", strerror(errno));
    char byte = 'l', room[CMSG_SPACE(sizeof listener)] = {0};
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof listener);
    memcpy(CMSG_DATA(head), &listener, sizeof listener);
    if (sendmsg(socket, &message, 0) != 1)
        fail("pass the listener on: %s", strerror(errno));
    close(listener);
}

/* In the shim: returns the listener that the container sent, or -1. */
int receive_listener(int socket)
{
    int listener = -1;
    char byte, room[CMSG_SPACE(sizeof listener)];
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != 1)
        return -1;
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    if (head && head->cmsg_level == SOL_SOCKET && head->cmsg_type == SCM_RIGHTS)
        memcpy(&listener, CMSG_DATA(head), sizeof listener);
    return listener;
}

/* The process of a thread: the kernel names the thread that calls, and opens processes only. */
static pid_t process_of(pid_t thread)
{
    char path[64], line[128];
    int process = thread;
    snprintf(path, sizeof path, "/proc/%d/status", (int)thread);
    FILE *status = fopen(path, "re");
    while (status && fgets(line, sizeof line, status))
        if (sscanf(line, "Tgid: %d", &process) == 1)
            break;
    if (status)
        fclose(status);
    return (pid_t)process;
}

/* A copy of the socket of a thread, or -1. */
static int socket_of(pid_t thread, int number)
{
    int process = (int)syscall(SYS_pidfd_open, process_of(thread), 0);
    int copy = process < 0 ? -1 : (int)syscall(SYS_pidfd_getfd, process, number, 0);
    if (process >= 0)
        close(process);
    return copy;
}

/* Whether the socket of a thread takes IPv6 only: it cannot have the pod's address, which is of IPv4. */
static int takes_ipv6_only(pid_t thread, int number)
{
    int value = 1, copy = socket_of(thread, number);
    socklen_t length = sizeof value;
    if (copy >= 0) {
        getsockopt(copy, IPPROTO_IPV6, IPV6_V6ONLY, &value, &length);
        close(copy);
    }
    return value;
}

/* Let a connection to another address of the loopback network begin at the pod's own. That to localhost is the pod's. */
static void begin_at(const struct seccomp_notif *call, struct in_addr pod)
{
    struct sockaddr_in to = {0}, from = {0};
    pid_t pid = (pid_t)call->pid;
    struct iovec here = {&to, sizeof to}, there = {(void *)(uintptr_t)call->data.args[1], sizeof to};
    if (call->data.args[2] < sizeof to || process_vm_readv(pid, &here, 1, &there, 1, 0) != (ssize_t)sizeof to)
        return;
    uint32_t address = ntohl(to.sin_addr.s_addr);
    if (to.sin_family != AF_INET || address >> 24 != IN_LOOPBACKNET || address == INADDR_LOOPBACK)
        return;
    int copy = socket_of(pid, (int)call->data.args[0]), later = 1;
    socklen_t length = sizeof from;
    if (copy < 0)
        return;
    if (getsockname(copy, (struct sockaddr *)&from, &length) == 0 && from.sin_family == AF_INET &&
        from.sin_addr.s_addr == INADDR_ANY && !from.sin_port) {
        from.sin_addr = pod;
        setsockopt(copy, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &later, sizeof later);
        if (bind(copy, (struct sockaddr *)&from, sizeof from) < 0) {
            /* It begins where the kernel lets it begin, as before. */
        }
    }
    close(copy);
}

static void replace(const struct seccomp_notif *call, struct in_addr pod)
{
    union { struct sockaddr head; struct sockaddr_in four; struct sockaddr_in6 six; } asked = {0};
    size_t length = call->data.args[2] < sizeof asked ? call->data.args[2] : sizeof asked;
    pid_t pid = (pid_t)call->pid;
    struct iovec here = {&asked, length}, there = {(void *)(uintptr_t)call->data.args[1], length};
    if (process_vm_readv(pid, &here, 1, &there, 1, 0) != (ssize_t)length)
        return;
    if (asked.head.sa_family == AF_INET && length >= sizeof asked.four) {
        if (asked.four.sin_addr.s_addr != INADDR_ANY || !asked.four.sin_port)
            return;
        asked.four.sin_addr = pod;
    } else if (asked.head.sa_family == AF_INET6 && length >= sizeof asked.six) {
        if (!IN6_IS_ADDR_UNSPECIFIED(&asked.six.sin6_addr) || !asked.six.sin6_port ||
            takes_ipv6_only(pid, (int)call->data.args[0]))
            return;
        memset(&asked.six.sin6_addr.s6_addr[10], 0xff, 2);
        memcpy(&asked.six.sin6_addr.s6_addr[12], &pod, sizeof pod);
    } else
        return;
    if (process_vm_writev(pid, &here, 1, &there, 1, 0) < 0)
        return; /* its own business, as before */
}

/* Answers one bind or connect; returns 0 when no process is left that could call either. */
int answer_bind(int listener, const char *address)
{
    struct seccomp_notif call = {0};
    struct in_addr pod;
    if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &call) < 0)
        return errno == EINTR || errno == ENOENT; /* the caller was killed meanwhile */
    if (inet_pton(AF_INET, address, &pod) == 1) {
        if (call.data.nr == __NR_connect)
            begin_at(&call, pod);
        else
            replace(&call, pod);
    }
    struct seccomp_notif_resp answer = {.id = call.id, .flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE};
    ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &answer);
    return 1;
}
