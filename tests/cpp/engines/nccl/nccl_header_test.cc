// Compares csrc/engines/nccl/nccl_api.h with an nccl.h of version 2.26 or newer: with what that
// version has. Compiled where there is one; it is enough that it compiles.

#include <nccl.h>

#include <cstddef>

#include <gtest/gtest.h>

#include "csrc/engines/nccl/nccl_api.h"
#include "tests/cpp/engines/nccl_symbols.h"
#include "tests/cpp/support/foreign_functions.h"

namespace aiacc {
namespace {

#define AIACC_COMPARE(member, symbol) \
  static_assert(SameForm<decltype(NcclApi::member), decltype(&::symbol)>::value, #symbol);
AIACC_NCCL_SYMBOLS(AIACC_COMPARE)
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 31, 0)
AIACC_COMPARE(all_reduce_config, ncclAllReduceConfig)
#endif

#define AIACC_SAME_PLACE(theirs, ours) \
  static_assert(offsetof(ncclConfig_t, theirs) == offsetof(NcclConfig, ours), #theirs)
AIACC_SAME_PLACE(blocking, blocking);
AIACC_SAME_PLACE(minCTAs, min_ctas);
AIACC_SAME_PLACE(maxCTAs, max_ctas);
AIACC_SAME_PLACE(netName, net_name);
AIACC_SAME_PLACE(splitShare, split_share);
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
AIACC_SAME_PLACE(commName, comm_name);
AIACC_SAME_PLACE(nvlsCTAs, nvls_ctas);
#endif
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)
AIACC_SAME_PLACE(nvlinkCentricSched, nvlink_centric_sched);
#endif
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 29, 0)
AIACC_SAME_PLACE(numRmaCtx, rma_contexts);
#endif
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 30, 0)
AIACC_SAME_PLACE(graphStreamOrdering, graph_stream_ordering);
#endif
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 31, 0)
AIACC_SAME_PLACE(launchOrderImplicit, launch_order_implicit);
AIACC_SAME_PLACE(hostCftMode, host_cft_mode);
static_assert(offsetof(ncclCollConfig_t, maxCTAs) == offsetof(NcclCollConfig, max_ctas));
static_assert(offsetof(ncclCollConfig_t, algSelection) == offsetof(NcclCollConfig, algorithms));
static_assert(offsetof(ncclCollConfig_t, forceAlgSelection) ==
              offsetof(NcclCollConfig, force_algorithms));
#endif
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 32, 0)
AIACC_SAME_PLACE(nvlsHostMode, nvls_host_mode);
static_assert(sizeof(ncclConfig_t) >= sizeof(NcclConfig), "members are only ever added");
static_assert(offsetof(ncclCollConfig_t, launchCompletionEvent) ==
              offsetof(NcclCollConfig, launch_completion_event));
#else
static_assert(sizeof(ncclConfig_t) < sizeof(NcclConfig), "it reads the members that it knows");
#endif

static_assert(kNcclUndefined == NCCL_CONFIG_UNDEF_INT);
#ifdef NCCL_API_MAGIC  // since 2.29
static_assert(kNcclMagic == NCCL_API_MAGIC);
#endif
static_assert(kNcclInProgress == static_cast<int>(ncclInProgress));
static_assert(kNcclRemoteError == static_cast<int>(ncclRemoteError));
static_assert(kNcclMin == static_cast<int>(ncclMin));
static_assert(kNcclBfloat16 == static_cast<int>(ncclBfloat16));
static_assert(kNcclFloat8e5m2 == static_cast<int>(ncclFloat8e5m2));

TEST(NcclHeaderTest, InitialisesAsTheHeaderDoes) {
  const ncclConfig_t theirs = NCCL_CONFIG_INITIALIZER;
  const NcclConfig ours;
  EXPECT_EQ(theirs.splitShare, ours.split_share);
  EXPECT_EQ(theirs.magic, ours.magic);
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 31, 0)
  EXPECT_EQ(theirs.launchOrderImplicit, ours.launch_order_implicit);
  const ncclCollConfig_t theirs_of_call = NCCL_COLLCONFIG_INITIALIZER;
  const NcclCollConfig ours_of_call;
  EXPECT_EQ(theirs_of_call.maxCTAs, ours_of_call.max_ctas);
  EXPECT_EQ(theirs_of_call.forceAlgSelection, ours_of_call.force_algorithms);
#endif
}

}  // namespace
}  // namespace aiacc
