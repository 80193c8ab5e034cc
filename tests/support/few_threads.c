/* For LD_PRELOAD: pthread_create fails as if the system had no room for another thread.
 *
 * limit_threads(count, live): from now on `count` threads more, counted while they live or, with
 * live = 0, for good. thread_refusals(): how many were refused. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

typedef int Create(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);

struct call {
  void* (*body)(void*);
  void* argument;
};

static atomic_int limited;
static atomic_int counts_live;
static atomic_int left;
static atomic_int refusals;

void limit_threads(int count, int live) {
  left = count;
  counts_live = live;
  limited = 1;
}

int thread_refusals(void) { return refusals; }

static void give_back(void* unused) {
  (void)unused;
  if (counts_live) {
    ++left;
  }
}

static void* run(void* opaque) {
  const struct call call = *(struct call*)opaque;
  void* result;
  free(opaque);
  pthread_cleanup_push(give_back, NULL);
  result = call.body(call.argument);
  pthread_cleanup_pop(1);
  return result;
}

int pthread_create(pthread_t* thread,
                   const pthread_attr_t* attributes,
                   void* (*body)(void*),
                   void* argument) {
  Create* const real = (Create*)dlsym(RTLD_NEXT, "pthread_create");
  if (!limited) {
    return real(thread, attributes, body, argument);
  }
  if (--left < 0) {
    ++left;
    ++refusals;
    return EAGAIN;
  }
  struct call* const call = malloc(sizeof *call);
  if (call == NULL) {
    return EAGAIN;
  }
  *call = (struct call){body, argument};
  return real(thread, attributes, run, call);
}
