/* A library to preload: the calls by which aiacc moves bytes over TCP sockets move fewer than asked
 * to, at random, and now and then none: then they fail with EINTR, as if a signal had come, or,
 * where the call must not block, with EAGAIN. Everything that a kernel may do on a busy machine.
 *
 * SHORT_IO_SEED in the environment makes another sequence. Calls on anything but stream sockets of
 * IPv4 and IPv6 go through, as do those with flags that change what a call means. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

enum { kMostParts = 64, kUnchanged = MSG_PEEK | MSG_WAITALL | MSG_OOB | MSG_ERRQUEUE };

static atomic_long calls;
static atomic_uint threads;

/* Calls of this process that were cut short or failed so far. */
__attribute__((visibility("default"))) long short_io_calls(void) { return atomic_load(&calls); }

#define REAL(name)                                     \
  static __typeof__(&name) real;                       \
  if (real == NULL) {                                  \
    real = (__typeof__(&name))dlsym(RTLD_NEXT, #name); \
  }

/* xorshift64*, of Marsaglia and Vigna. */
static uint32_t random_bits(void) {
  static _Thread_local uint64_t state;
  if (state == 0) {
    const char* seed = getenv("SHORT_IO_SEED");
    const uint64_t number = seed == NULL ? 0 : strtoull(seed, NULL, 10);
    state = (number * 1000u + atomic_fetch_add(&threads, 1u)) * 0x9E3779B97F4A7C15u + 1u;
  }
  state ^= state >> 12;
  state ^= state << 25;
  state ^= state >> 27;
  return (uint32_t)((state * 0x2545F4914F6CDD1Du) >> 32);
}

static int is_tcp(int descriptor) {
  const int before = errno;
  int domain = 0;
  int type = 0;
  socklen_t length = sizeof domain;
  const int known = getsockopt(descriptor, SOL_SOCKET, SO_DOMAIN, &domain, &length) == 0 &&
                    getsockopt(descriptor, SOL_SOCKET, SO_TYPE, &type, &length) == 0;
  errno = before;
  return known && (domain == AF_INET || domain == AF_INET6) && type == SOCK_STREAM;
}

static int must_not_block(int descriptor, int flags) {
  return (flags & MSG_DONTWAIT) != 0 || (fcntl(descriptor, F_GETFL) & O_NONBLOCK) != 0;
}

/* How many of the bytes the call may move; -1 if it shall fail, and then errno is set. */
static ssize_t allowed(int descriptor, size_t bytes, int flags) {
  if (bytes == 0 || (flags & kUnchanged) != 0 || !is_tcp(descriptor)) {
    return (ssize_t)bytes;
  }
  const uint32_t what = random_bits() % 16;
  if (what == 0) {
    atomic_fetch_add(&calls, 1);
    errno = must_not_block(descriptor, flags) && random_bits() % 2 == 0 ? EAGAIN : EINTR;
    return -1;
  }
  if (what >= 12 || bytes == 1) {
    return (ssize_t)bytes;
  }
  const size_t most = what < 4 && bytes > 16 ? 16 : bytes;
  const size_t cut = 1 + random_bits() % most;
  atomic_fetch_add(&calls, cut < bytes ? 1 : 0);
  return (ssize_t)cut;
}

static size_t total_of(const struct iovec* parts, size_t count) {
  size_t total = 0;
  for (size_t i = 0; i < count; ++i) {
    total += parts[i].iov_len;
  }
  return total;
}

/* Copies as many parts as `bytes` need, the last one cut; their number. */
static size_t first_bytes(struct iovec* into, const struct iovec* parts, size_t bytes) {
  size_t count = 0;
  for (; bytes > 0; ++count) {
    into[count] = parts[count];
    if (into[count].iov_len > bytes) {
      into[count].iov_len = bytes;
    }
    bytes -= into[count].iov_len;
  }
  return count;
}

ssize_t send(int descriptor, const void* data, size_t bytes, int flags) {
  REAL(send)
  const ssize_t now = allowed(descriptor, bytes, flags);
  return now < 0 ? -1 : real(descriptor, data, (size_t)now, flags);
}

ssize_t recv(int descriptor, void* data, size_t bytes, int flags) {
  REAL(recv)
  const ssize_t now = allowed(descriptor, bytes, flags);
  return now < 0 ? -1 : real(descriptor, data, (size_t)now, flags);
}

/* What a program built with _FORTIFY_SOURCE calls; the size of the buffer stays unchecked. */
ssize_t __recv_chk(int descriptor, void* data, size_t bytes, size_t room, int flags) {
  (void)room;
  return recv(descriptor, data, bytes, flags);
}

/* Makes `cut` the message of which no more moves than is allowed, its parts in `fewer`; -1 if the
 * call shall fail. Messages with more parts, or with control data, stay whole. */
static int cut_message(int descriptor,
                       const struct msghdr* message,
                       int flags,
                       struct msghdr* cut,
                       struct iovec* fewer) {
  *cut = *message;
  if (message->msg_controllen > 0 || message->msg_iovlen > kMostParts) {
    return 0;
  }
  const size_t bytes = total_of(message->msg_iov, message->msg_iovlen);
  const ssize_t now = allowed(descriptor, bytes, flags);
  if (now < 0) {
    return -1;
  }
  cut->msg_iov = fewer;
  cut->msg_iovlen = first_bytes(fewer, message->msg_iov, (size_t)now);
  return 0;
}

ssize_t sendmsg(int descriptor, const struct msghdr* message, int flags) {
  REAL(sendmsg)
  struct msghdr cut;
  struct iovec fewer[kMostParts];
  return cut_message(descriptor, message, flags, &cut, fewer) < 0 ? -1
                                                                  : real(descriptor, &cut, flags);
}

ssize_t recvmsg(int descriptor, struct msghdr* message, int flags) {
  REAL(recvmsg)
  struct msghdr cut;
  struct iovec fewer[kMostParts];
  if (cut_message(descriptor, message, flags, &cut, fewer) < 0) {
    return -1;
  }
  const ssize_t got = real(descriptor, &cut, flags);
  cut.msg_iov = message->msg_iov;
  cut.msg_iovlen = message->msg_iovlen;
  *message = cut;
  return got;
}
