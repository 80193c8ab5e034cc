/* Checks in C: the first that fails ends its function, which returns 1. Who checks defines
 * `failure`. */
#ifndef AIACC_TESTS_C_EXPECT_H
#define AIACC_TESTS_C_EXPECT_H

#include <stdio.h>
#include <string.h>

#define FAILURE_BYTES 2048
extern char failure[FAILURE_BYTES];

#define EXPECT(condition)                   \
  do {                                      \
    if (!(condition)) {                     \
      snprintf(failure,                     \
               sizeof failure,              \
               "%s:%d: %s; last error: %s", \
               __FILE__,                    \
               __LINE__,                    \
               #condition,                  \
               aiacc_last_error());         \
      return 1;                             \
    }                                       \
  } while (0)

/* That the call fails with the code, and says the text. */
#define EXPECT_REFUSED(call, code, text)                \
  do {                                                  \
    EXPECT((call) == (code));                           \
    EXPECT(strstr(aiacc_last_error(), (text)) != NULL); \
  } while (0)

#endif
