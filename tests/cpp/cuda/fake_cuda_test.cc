// What tests rely on without seeing it: that misuse, waits and calls that spoil a capture are
// noticed. That the fake does what a GPU does is seen by everything that runs on it.

#include "tests/cpp/support/fakes/fake_cuda.h"

#include <gtest/gtest.h>

#include "csrc/cuda/device.h"

namespace aiacc {
namespace {

class FakeCudaTest : public testing::Test {
 protected:
  FakeCudaTest() { make_current(0); }

  void make_current(CudaDevice device) {
    CudaContext context = nullptr;
    driver().primary_context_retain(&context, device);
    driver().context_push(context);
  }
  CudaStream stream() {
    CudaStream made = nullptr;
    EXPECT_EQ(kCudaSuccess, driver().stream_create(&made, kCudaStreamNonBlocking, 0));
    return made;
  }
  CudaEvent event() {
    CudaEvent made = nullptr;
    EXPECT_EQ(kCudaSuccess, driver().event_create(&made, kCudaEventDisableTiming));
    return made;
  }
  const CudaDriver& driver() { return cuda_.driver(); }

  FakeCuda cuda_{2};
};

TEST_F(FakeCudaTest, CallsThatMayWaitAreCounted) {
  CudaAddress device = 0;
  void* host = nullptr;
  driver().allocate(&device, 64);
  driver().host_allocate(&host, 64, kCudaHostPortable);
  EXPECT_EQ(2, cuda_.synchronising_calls());
  driver().release(device);
  driver().host_release(host);
  EXPECT_EQ(4, cuda_.synchronising_calls());
  EXPECT_EQ(0, cuda_.misuses());
}

TEST_F(FakeCudaTest, MisuseIsCounted) {
  const CudaStream gone = stream();
  driver().stream_destroy(gone);
  EXPECT_EQ(kCudaInvalidHandle, driver().event_record(event(), gone));
  CudaContext context = nullptr;
  driver().context_pop(&context);
  CudaEvent event = nullptr;
  EXPECT_EQ(kCudaInvalidContext, driver().event_create(&event, 0));
  EXPECT_EQ(kCudaInvalidHandle, driver().stream_query(nullptr));  // of which device?
  EXPECT_EQ(3, cuda_.misuses());
}

TEST_F(FakeCudaTest, ACaptureForbidsUnsafeCallsInEveryThreadThatIsNotRelaxed) {
  const CudaStream lane = stream();
  const CudaEvent done = event();
  cuda_.set_capturing(stream(), true);
  int mode = kCudaCaptureRelaxed;
  driver().exchange_capture_mode(&mode);
  EXPECT_EQ(kCudaCaptureGlobal, mode);
  EXPECT_EQ(kCudaSuccess, driver().event_query(done));
  EXPECT_EQ("", cuda_.spoilt_by());
  driver().exchange_capture_mode(&mode);
  EXPECT_EQ(kCudaCaptureRelaxed, mode);
  EXPECT_EQ(kCudaCaptureUnsupported, driver().event_query(done));
  EXPECT_EQ("event_query", cuda_.spoilt_by());
  EXPECT_EQ(kCudaCaptureUnsupported, driver().stream_query(lane));
  EXPECT_EQ(kCudaSuccess, driver().event_record(done, lane)) << "this one is safe";
}

TEST_F(FakeCudaTest, AScopeLeavesTheModeOfItsThreadAsItWas) {
  const auto device = Device::open(driver(), 1);
  {
    const Device::Scope scope(*device);
    int now = kCudaCaptureGlobal;
    driver().exchange_capture_mode(&now);
    EXPECT_EQ(kCudaCaptureRelaxed, now);
    driver().exchange_capture_mode(&now);
  }
  int after = kCudaCaptureRelaxed;
  driver().exchange_capture_mode(&after);
  EXPECT_EQ(kCudaCaptureGlobal, after);
  driver().exchange_capture_mode(&after);
}

}  // namespace
}  // namespace aiacc
