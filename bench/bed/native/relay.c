/* Joins virtual hosts by a network with delay, loss and reordering: one TAP device "eth0" in each
 * host's network namespace, and one process that carries the frames between them.
 *
 *   relay SEED NAMESPACE...
 *
 * Host n has the Ethernet address 02:00:00:00:00:(n+1), so the last byte of a frame's target says
 * where it goes. It reads one command:
 *
 *   set SOURCE TARGET DELAY_US LOSS_PPM REORDER_PPM
 *
 * from one host to another, -1 for all. A frame is lost with probability LOSS_PPM / 10^6, all of
 * them at 10^6; one that is reordered arrives another DELAY_US and a millisecond later. The answer
 * is "ok FRAMES LOST", or "error"; the first one comes unasked, when all devices are there. It ends
 * with its input.
 *
 * The kernel may hand over many segments of one TCP connection as one large frame, which saves most
 * of the work. Each segment counts as a frame and has a fate of its own. Those that differ from
 * their neighbours are cut out; the others stay together. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <linux/virtio_net.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <netinet/in.h>
#include <netinet/ip.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

/* Bytes before the IP header: what the kernel says of a frame, and Ethernet's header. */
enum { kBeforeIp = sizeof(struct virtio_net_hdr) + 14 };

enum { kMostHosts = 64, kMostFrames = 1 << 16, kLargestFrame = 1 << 17, kBatch = 64 };

struct path {
  uint64_t delay_ns;
  uint32_t loss_ppm;
  uint32_t reorder_ppm;
};

struct frame {
  uint64_t due_ns;
  uint64_t number; /* frames that are due at the same time keep their order */
  int target;
  int bytes;
  char* data;
};

static struct path paths[kMostHosts][kMostHosts];
static int devices[kMostHosts];
static int hosts;

/* A heap: the frame that is due next comes first. */
static struct frame queue[kMostFrames];
static int queued;

static uint64_t random_state;
static uint64_t frames;
static uint64_t lost;

static void fail(const char* what) {
  fprintf(stderr, "relay: %s: %s\n", what, strerror(errno));
  exit(1);
}

static uint64_t now_ns(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

/* xorshift64*, of Marsaglia and Vigna. */
static uint32_t random_ppm(void) {
  random_state ^= random_state >> 12;
  random_state ^= random_state << 25;
  random_state ^= random_state >> 27;
  return (uint32_t)((random_state * 0x2545F4914F6CDD1Du) >> 32) % 1000000u;
}

static int before(const struct frame* a, const struct frame* b) {
  return a->due_ns != b->due_ns ? a->due_ns < b->due_ns : a->number < b->number;
}

static void push(struct frame frame) {
  int at = queued++;
  for (; at > 0 && before(&frame, &queue[(at - 1) / 2]); at = (at - 1) / 2) {
    queue[at] = queue[(at - 1) / 2];
  }
  queue[at] = frame;
}

static struct frame pop(void) {
  const struct frame first = queue[0];
  const struct frame last = queue[--queued];
  int at = 0;
  for (int child = 1; child < queued; child = 2 * at + 1) {
    if (child + 1 < queued && before(&queue[child + 1], &queue[child])) {
      ++child;
    }
    if (before(&last, &queue[child])) {
      break;
    }
    queue[at] = queue[child];
    at = child;
  }
  queue[at] = last;
  return first;
}

enum fate { kInTime, kLate, kLost };

static enum fate fate_on(const struct path* path) {
  if (path->loss_ppm > 0 && random_ppm() < path->loss_ppm) {
    return kLost;
  }
  return path->reorder_ppm > 0 && random_ppm() < path->reorder_ppm ? kLate : kInTime;
}

/* What a frame consists of: headers, and payload in segments of `segment` bytes, the last one
 * shorter. Only large TCP frames have more than one. */
struct parts {
  int headers;
  int segment;
  int count;
};

static struct parts parts_of(const char* data, int bytes) {
  const struct virtio_net_hdr* said = (const struct virtio_net_hdr*)data;
  struct parts parts = {0, bytes, 1};
  if (said->gso_type == VIRTIO_NET_HDR_GSO_TCPV4 && said->gso_size > 0) {
    const struct iphdr* ip = (const struct iphdr*)(data + kBeforeIp);
    const struct tcphdr* tcp = (const struct tcphdr*)((const char*)ip + 4 * ip->ihl);
    parts.headers = kBeforeIp + 4 * ip->ihl + 4 * tcp->doff;
    parts.segment = said->gso_size;
    parts.count = (bytes - parts.headers + parts.segment - 1) / parts.segment;
  }
  return parts;
}

static uint16_t ip_checksum(const struct iphdr* ip) {
  uint32_t sum = 0;
  for (int i = 0; i < 2 * ip->ihl; ++i) {
    uint16_t word;
    memcpy(&word, (const char*)ip + 2 * i, sizeof word);
    sum += word;
  }
  sum = (sum & 0xFFFF) + (sum >> 16);
  return (uint16_t)~(sum + (sum >> 16));
}

/* A frame of the segments from `first` up to `end`. The checksum of TCP is not there yet, in the
 * large frame as in its parts: the kernel trusts what has not left the machine. */
static struct frame cut(const char* data, int bytes, struct parts parts, int first, int end) {
  const int from = parts.headers + first * parts.segment;
  const int to = end == parts.count ? bytes : parts.headers + end * parts.segment;
  struct frame frame = {.bytes = parts.headers + to - from};
  frame.data = malloc((size_t)frame.bytes);
  if (frame.data == NULL) {
    fail("malloc");
  }
  memcpy(frame.data, data, (size_t)parts.headers);
  memcpy(frame.data + parts.headers, data + from, (size_t)(to - from));
  if (end - first == parts.count) {
    return frame;
  }
  struct virtio_net_hdr* said = (struct virtio_net_hdr*)frame.data;
  struct iphdr* ip = (struct iphdr*)(frame.data + kBeforeIp);
  struct tcphdr* tcp = (struct tcphdr*)((char*)ip + 4 * ip->ihl);
  if (end - first == 1) {
    said->gso_type = VIRTIO_NET_HDR_GSO_NONE;
    said->gso_size = 0;
  }
  ip->tot_len = htons((uint16_t)(frame.bytes - kBeforeIp));
  ip->id = htons((uint16_t)(ntohs(ip->id) + first));
  ip->check = 0;
  ip->check = ip_checksum(ip);
  tcp->seq = htonl(ntohl(tcp->seq) + (uint32_t)(first * parts.segment));
  tcp->fin = tcp->fin && end == parts.count;
  tcp->psh = tcp->psh && end == parts.count;
  return frame;
}

static void carry(int source, int target, const char* data, int bytes, uint64_t now) {
  const struct path* path = &paths[source][target];
  const struct parts parts = parts_of(data, bytes);
  enum fate next = fate_on(path);
  for (int first = 0, end = 0; first < parts.count; first = end) {
    const enum fate fate = next;
    for (end = first + 1; end < parts.count && (next = fate_on(path)) == fate; ++end) {
    }
    frames += (uint64_t)(end - first);
    if (fate == kLost || queued == kMostFrames) {
      lost += (uint64_t)(end - first);
      continue;
    }
    struct frame frame = cut(data, bytes, parts, first, end);
    frame.number = frames;
    frame.target = target;
    frame.due_ns = now + path->delay_ns + (fate == kLate ? path->delay_ns + 1000000u : 0);
    push(frame);
  }
}

static void take_from(int source) {
  static char buffer[kLargestFrame];
  const uint64_t now = now_ns();
  for (int i = 0; i < kBatch; ++i) {
    const ssize_t bytes = read(devices[source], buffer, sizeof buffer);
    if (bytes < 0 && errno == EBADFD) {
      exit(0); /* the host is gone, so the bed is being taken down */
    }
    if (bytes < kBeforeIp) {
      return;
    }
    const unsigned char* address = (const unsigned char*)buffer + sizeof(struct virtio_net_hdr);
    const int target = address[5] - 1;
    if ((address[0] & 1) == 0 && target >= 0 && target < hosts) {
      carry(source, target, buffer, (int)bytes, now);
      continue;
    }
    for (int all = 0; all < hosts; ++all) {
      if (all != source) {
        carry(source, all, buffer, (int)bytes, now);
      }
    }
  }
}

static void deliver(uint64_t now) {
  while (queued > 0 && queue[0].due_ns <= now) {
    const struct frame frame = pop();
    if (write(devices[frame.target], frame.data, (size_t)frame.bytes) < 0) {
      ++lost; /* the host's interface is down */
    }
    free(frame.data);
  }
}

static int open_device(const char* namespace, int host) {
  const int inside = open(namespace, O_RDONLY | O_CLOEXEC);
  if (inside < 0 || setns(inside, CLONE_NEWNET) != 0) {
    fail(namespace);
  }
  close(inside);
  const int device = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
  struct ifreq request = {.ifr_name = "eth0"};
  request.ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR;
  if (device < 0 || ioctl(device, TUNSETIFF, &request) != 0) {
    fail("/dev/net/tun");
  }
  if (ioctl(device, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4) != 0) {
    fail("TUNSETOFFLOAD");
  }
  const char address[6] = {2, 0, 0, 0, 0, (char)(host + 1)};
  request.ifr_hwaddr.sa_family = ARPHRD_ETHER;
  memcpy(request.ifr_hwaddr.sa_data, address, sizeof address);
  if (ioctl(device, SIOCSIFHWADDR, &request) != 0) {
    fail("SIOCSIFHWADDR");
  }
  return device;
}

/* Whether the text was a command. */
static int obey(const char* text) {
  int source = 0;
  int target = 0;
  unsigned long delay_us = 0;
  unsigned loss_ppm = 0;
  unsigned reorder_ppm = 0;
  char more = 0;
  if (sscanf(text,
             "set %d %d %lu %u %u %c",
             &source,
             &target,
             &delay_us,
             &loss_ppm,
             &reorder_ppm,
             &more) != 5 ||
      source < -1 || source >= hosts || target < -1 || target >= hosts) {
    return 0;
  }
  for (int from = 0; from < hosts; ++from) {
    for (int to = 0; to < hosts; ++to) {
      if ((source == -1 || source == from) && (target == -1 || target == to)) {
        paths[from][to] = (struct path){delay_us * 1000u, loss_ppm, reorder_ppm};
      }
    }
  }
  return 1;
}

static void answer(void) {
  char text[256];
  if (fgets(text, sizeof text, stdin) == NULL) {
    exit(0);
  }
  if (obey(text)) {
    printf("ok %llu %llu\n", (unsigned long long)frames, (unsigned long long)lost);
  } else {
    puts("error");
  }
  fflush(stdout);
}

int main(int count, char** arguments) {
  hosts = count - 2;
  if (hosts < 1 || hosts > kMostHosts) {
    fprintf(stderr, "usage: relay SEED NAMESPACE... (1 to %d namespaces)\n", kMostHosts);
    return 2;
  }
  random_state = strtoull(arguments[1], NULL, 10) * 2u + 1u;
  const int outside = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
  struct pollfd entries[kMostHosts + 1] = {{STDIN_FILENO, POLLIN, 0}};
  for (int host = 0; host < hosts; ++host) {
    devices[host] = open_device(arguments[2 + host], host);
    entries[1 + host] = (struct pollfd){devices[host], POLLIN, 0};
  }
  if (setns(outside, CLONE_NEWNET) != 0) { /* so that it is not among the last host's processes */
    fail("/proc/self/ns/net");
  }
  close(outside);
  puts("ok 0 0");
  fflush(stdout);
  while (1) {
    struct timespec wait = {0, 0};
    const uint64_t now = now_ns();
    if (queued > 0 && queue[0].due_ns > now) {
      wait.tv_sec = (time_t)((queue[0].due_ns - now) / 1000000000u);
      wait.tv_nsec = (long)((queue[0].due_ns - now) % 1000000000u);
    }
    if (ppoll(entries, (nfds_t)hosts + 1, queued > 0 ? &wait : NULL, NULL) < 0 && errno != EINTR) {
      fail("ppoll");
    }
    if (entries[0].revents != 0) {
      answer();
    }
    for (int host = 0; host < hosts; ++host) {
      if (entries[1 + host].revents != 0) {
        take_from(host);
      }
    }
    deliver(now_ns());
  }
}
