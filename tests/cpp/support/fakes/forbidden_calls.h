#pragma once

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace aiacc {

/// A system call that a sandbox fails with `error_number`: always, or if its argument number
/// `argument` has all of `bits`.
struct ForbiddenCall {
  long number;
  int error_number;
  int argument = -1;
  std::uint32_t bits = 0;
};

/// Puts the calling thread, for the rest of its life, into a sandbox without these calls. False
/// where sandboxes are forbidden themselves.
inline bool forbid_calls(const std::vector<ForbiddenCall>& calls) {
  const auto load = [](std::size_t offset) {
    return sock_filter BPF_STMT(BPF_LD | BPF_W | BPF_ABS, static_cast<std::uint32_t>(offset));
  };
  std::vector<sock_filter> program;
  for (const ForbiddenCall& call : calls) {
    const bool always = call.argument < 0;
    const auto number = static_cast<std::uint32_t>(call.number);
    const auto refusal =
        SECCOMP_RET_ERRNO | (static_cast<std::uint32_t>(call.error_number) & SECCOMP_RET_DATA);
    program.push_back(load(offsetof(seccomp_data, nr)));
    program.push_back(
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, static_cast<std::uint8_t>(always ? 1 : 4)));
    if (!always) {
      program.push_back(load(offsetof(seccomp_data, args) +
                             sizeof(std::uint64_t) * static_cast<std::size_t>(call.argument)));
      program.push_back(BPF_STMT(BPF_ALU | BPF_AND | BPF_K, call.bits));
      program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call.bits, 0, 1));
    }
    program.push_back(BPF_STMT(BPF_RET | BPF_K, refusal));
  }
  program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  const sock_fprog filter{static_cast<unsigned short>(program.size()), program.data()};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

/// As some sandboxes of containers do.
inline bool forbid_memfd() { return forbid_calls({{SYS_memfd_create, EPERM}}); }

}  // namespace aiacc
