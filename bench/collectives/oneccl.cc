// oneCCL's all-reduce of float32 for ctypes; `blocking` compiles it when it measures.

#include <chrono>
#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <thread>

#include "oneapi/ccl.hpp"

namespace {
std::unique_ptr<ccl::communicator> communicator;
}  // namespace

/// Meets the other ranks: rank 0 writes its address to the file.
extern "C" void start(int rank, int size, const char* file) {
  ccl::init();
  ccl::kvs::address_type address;
  std::shared_ptr<ccl::kvs> store;
  if (rank == 0) {
    store = ccl::create_main_kvs();
    address = store->get_address();
    const std::string part = std::string(file) + ".part";
    std::ofstream(part, std::ios::binary).write(address.data(), address.size());
    std::rename(part.c_str(), file);
  } else {
    while (!std::ifstream(file)) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    std::ifstream(file, std::ios::binary).read(address.data(), address.size());
    store = ccl::create_kvs(address);
  }
  communicator = std::make_unique<ccl::communicator>(ccl::create_communicator(size, rank, store));
}

extern "C" void all_reduce(float* data, std::size_t count) {
  const auto type = ccl::datatype::float32;
  ccl::allreduce(data, data, count, type, ccl::reduction::sum, *communicator).wait();
}

extern "C" void barrier() { ccl::barrier(*communicator); }

/// Before the process ends: the library does not survive what it has made.
extern "C" void stop() { communicator.reset(); }
