// What a submission costs the thread that makes it, in C++: two processes over loopback, the `tcp`
// engine, named tensors of 1 KiB. Only the calls of submit are timed, then everything is waited
// for. Rank 0 prints one JSON object.
//
//   submit_bench [repetitions [tensors]]

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "csrc/core/runtime.h"

namespace {

using aiacc::Handle;
using SteadyClock = std::chrono::steady_clock;

std::vector<double> measure(aiacc::Coordinator& coordinator, int repetitions, int tensors) {
  std::vector<std::vector<float>> data(static_cast<std::size_t>(tensors),
                                       std::vector<float>(256, 1.0F));
  std::vector<std::string> names;
  for (int i = 0; i < tensors; ++i) {
    names.push_back("allreduce.layer" + std::to_string(i) + ".weight");
  }
  std::vector<double> samples;
  std::vector<Handle> handles;
  for (int repetition = 0; repetition < repetitions; ++repetition) {
    handles.clear();
    const auto start = SteadyClock::now();
    for (std::size_t i = 0; i < data.size(); ++i) {
      auto operation = coordinator.acquire();
      operation->request.name = names[i];
      operation->request.op = aiacc::ReduceOp::kMax;
      operation->request.shape.assign({16, 16});
      operation->input = operation->output = data[i].data();
      handles.push_back(coordinator.submit(std::move(operation)));
    }
    const std::chrono::duration<double, std::micro> taken = SteadyClock::now() - start;
    samples.push_back(taken.count() / tensors);
    for (const Handle handle : handles) {
      coordinator.wait(handle);
      coordinator.release(handle);
    }
  }
  for (const auto& tensor : data) {
    if (std::any_of(tensor.begin(), tensor.end(), [](float value) { return value != 1.0F; })) {
      std::fprintf(stderr, "wrong result\n");
      std::exit(1);
    }
  }
  return samples;
}

/// The addresses of both ranks.
std::vector<std::string> exchanged(const int (&pipes)[2][2], int rank, const std::string& address) {
  const std::string line = address + '\n';
  std::vector<std::string> addresses(2, address);
  std::string& theirs = addresses[static_cast<std::size_t>(1 - rank)];
  theirs.clear();
  if (write(pipes[rank][1], line.data(), line.size()) != static_cast<ssize_t>(line.size())) {
    std::perror("write");
    std::exit(1);
  }
  char letter = 0;
  while (read(pipes[1 - rank][0], &letter, 1) == 1 && letter != '\n') {
    theirs += letter;
  }
  return addresses;
}

}  // namespace

int main(int argc, char** argv) {
  const int repetitions = argc > 1 ? std::atoi(argv[1]) : 200;
  const int tensors = argc > 2 ? std::atoi(argv[2]) : 161;
  int pipes[2][2];  // the address of rank r travels through pipes[r]
  if (pipe(pipes[0]) != 0 || pipe(pipes[1]) != 0) {
    std::perror("pipe");
    return 1;
  }
  const pid_t child = fork();  // first: sockets do not survive it
  const int rank = child == 0 ? 1 : 0;
  const auto listener = std::make_shared<aiacc::Listener>("127.0.0.1");
  aiacc::SessionOptions options;
  options.addresses = exchanged(pipes, rank, listener->address());
  options.topology = {rank, 2, rank, 2, 0, 1};
  options.engine = "tcp";
  std::vector<double> samples;
  {
    aiacc::Session session(aiacc::Config::from_environment(), options, listener);
    measure(session.coordinator(), 20, tensors);
    samples = measure(session.coordinator(), repetitions, tensors);
  }
  if (rank == 1) {
    return 0;
  }
  int status = 0;
  waitpid(child, &status, 0);
  std::printf("{\"samples_us\": [");
  for (std::size_t i = 0; i < samples.size(); ++i) {
    std::printf("%s%.4f", i == 0 ? "" : ", ", samples[i]);
  }
  std::printf("]}\n");
  return status;
}
