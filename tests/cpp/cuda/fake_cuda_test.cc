#include "tests/cpp/support/fakes/fake_cuda.h"

#include <atomic>
#include <numeric>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "csrc/cuda/device.h"

namespace aiacc {
namespace {

CudaAddress address_of(const void* memory) { return reinterpret_cast<CudaAddress>(memory); }

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

TEST_F(FakeCudaTest, AStreamKeepsItsOrder) {
  const CudaStream lane = stream();
  std::vector<int> order;
  for (int i = 0; i < 100; ++i) {
    cuda_.enqueue(lane, [&order, i] { order.push_back(i); });
  }
  cuda_.drain();
  std::vector<int> expected(100);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(expected, order);
}

TEST_F(FakeCudaTest, AnEventOrdersTwoStreams) {
  const CudaStream producer = stream();
  const CudaStream consumer = stream();
  const CudaEvent ready = event();
  int value = 0;
  int seen = 0;
  cuda_.hold();
  cuda_.enqueue(producer, [&] { value = 7; });
  EXPECT_EQ(kCudaSuccess, driver().event_record(ready, producer));
  EXPECT_EQ(kCudaSuccess, driver().stream_wait_event(consumer, ready, 0));
  cuda_.enqueue(consumer, [&] { seen = value; });
  EXPECT_EQ(kCudaNotReady, driver().event_query(ready));
  EXPECT_EQ(kCudaNotReady, driver().stream_query(consumer));
  cuda_.release();
  cuda_.drain();
  EXPECT_EQ(7, seen);
  EXPECT_EQ(kCudaSuccess, driver().event_query(ready));
  EXPECT_EQ(kCudaSuccess, driver().stream_query(consumer));
}

TEST_F(FakeCudaTest, AnEventMayBeRecordedElsewhereWhileSomebodyWaits) {
  const CudaStream slow = stream();
  const CudaStream fast = stream();
  const CudaStream first = stream();
  const CudaStream second = stream();
  const CudaEvent event = this->event();
  std::atomic<bool> go{false};
  std::atomic<bool> done{false};
  std::atomic<bool> early{false};
  cuda_.enqueue(slow, [&] {
    while (!go.load()) {
      std::this_thread::yield();
    }
    done.store(true);
  });
  driver().event_record(event, slow);
  driver().stream_wait_event(first, event, 0);
  cuda_.enqueue(first, [&] { early.store(!done.load()); });
  driver().event_record(event, fast);
  while (driver().event_query(event) == kCudaNotReady) {
    std::this_thread::yield();
  }
  EXPECT_EQ(kCudaNotReady, driver().stream_query(first)) << "it waits for the slow one";
  go.store(true);
  cuda_.drain();
  EXPECT_FALSE(early.load());
  // The slow one, which came later, has not undone the record on the fast one.
  driver().stream_wait_event(second, event, 0);
  cuda_.drain();
  EXPECT_EQ(kCudaSuccess, driver().event_query(event));
}

TEST_F(FakeCudaTest, AWaitIsForTheRecordBeforeIt) {
  const CudaStream one = stream();
  const CudaStream other = stream();
  const CudaEvent event = this->event();
  EXPECT_EQ(kCudaSuccess, driver().stream_wait_event(other, event, 0));  // never recorded: no wait
  cuda_.drain();
  cuda_.hold();
  driver().event_record(event, one);
  driver().stream_wait_event(other, event, 0);
  driver().event_record(event, one);
  cuda_.release();
  cuda_.drain();
  EXPECT_EQ(kCudaSuccess, driver().event_query(event));
}

TEST_F(FakeCudaTest, CopiesAndTells) {
  const CudaStream lane = stream();
  CudaAddress device = 0;
  void* host = nullptr;
  driver().allocate(&device, 64);
  driver().host_allocate(&host, 64, kCudaHostPortable);
  EXPECT_EQ(0u, device % 256);
  driver().fill_async(device, 9, 64, lane);
  driver().copy_async(address_of(host), device, 64, lane);
  std::atomic<bool> done = false;
  driver().launch_host_function(
      lane, [](void* flag) { static_cast<std::atomic<bool>*>(flag)->store(true); }, &done);
  cuda_.drain();
  EXPECT_TRUE(done);
  EXPECT_EQ(9, static_cast<char*>(host)[63]);

  unsigned type = 0;
  EXPECT_EQ(kCudaSuccess, driver().pointer_attribute(&type, kCudaPointerMemoryType, device + 63));
  EXPECT_EQ(kCudaMemoryDevice, type);
  driver().pointer_attribute(&type, kCudaPointerMemoryType, address_of(host));
  EXPECT_EQ(kCudaMemoryHost, type);
  EXPECT_EQ(kCudaInvalidValue,
            driver().pointer_attribute(&type, kCudaPointerMemoryType, address_of(&type)));
  EXPECT_EQ(0, cuda_.misuses());
  EXPECT_EQ(2, cuda_.synchronising_calls());
  driver().release(device);
  driver().host_release(host);
  EXPECT_EQ(4, cuda_.synchronising_calls());
}

TEST_F(FakeCudaTest, DevicesAreToldApart) {
  make_current(1);
  const CudaStream second = stream();
  CudaAddress memory = 0;
  driver().allocate(&memory, 8);
  int device = -1;
  driver().pointer_attribute(&device, kCudaPointerDevice, memory);
  EXPECT_EQ(1, device);
  EXPECT_EQ(1, cuda_.device_of(second));
  CudaContext context = nullptr;
  driver().context_pop(&context);
  EXPECT_EQ(0, cuda_.device_of(stream()));
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

TEST_F(FakeCudaTest, NothingWorksOnABrokenDevice) {
  const CudaStream lane = stream();
  const CudaEvent done = event();
  int runs = 0;
  cuda_.hold();
  cuda_.enqueue(lane, [&] { ++runs; });
  driver().event_record(done, lane);
  cuda_.break_with(700);
  cuda_.release();
  cuda_.drain();
  EXPECT_EQ(0, runs);
  EXPECT_EQ(700, driver().event_query(done));
  EXPECT_EQ(700, driver().event_record(done, lane));
}

TEST_F(FakeCudaTest, Captures) {
  const CudaStream lane = stream();
  int status = -1;
  driver().stream_is_capturing(lane, &status);
  EXPECT_EQ(0, status);
  cuda_.set_capturing(lane, true);
  driver().stream_is_capturing(lane, &status);
  EXPECT_EQ(1, status);
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
