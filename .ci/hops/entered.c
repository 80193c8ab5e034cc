/* For LD_PRELOAD: while `counting`, functions that were compiled with -finstrument-functions are
 * noted in `entered` when any thread but that of the heartbeats enters them. */
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/prctl.h>

enum { SLOTS = 1 << 16 };

atomic_int counting;
_Atomic(uintptr_t) entered[SLOTS];

void __cyg_profile_func_enter(void* function, void* caller) {
  (void)caller;
  char thread[16] = "";
  if (!counting || prctl(PR_GET_NAME, thread) != 0 || strcmp(thread, "aiacc beat") == 0) {
    return;
  }
  const uintptr_t own = (uintptr_t)function;
  for (size_t at = own;; ++at) {
    uintptr_t other = 0;
    if (atomic_compare_exchange_strong(&entered[at % SLOTS], &other, own) || other == own) {
      return;
    }
  }
}
