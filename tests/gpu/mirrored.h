#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <vector>

#include "tests/cpp/kernels/elements.h"
#include "tests/gpu/gpu_rig.h"

namespace aiacc {

/// The same numbers on the host and on a GPU, `shift` of them behind an aligned address, with room
/// around them. What is done to one side is done to the other as well; then both are alike.
template <class T>
class Mirrored {
 public:
  Mirrored(GpuRig& rig, const std::vector<T>& values, std::size_t shift = 0)
      : begin_(kRoom + shift),
        count_(values.size()),
        host_(untouched(begin_ + count_ + kRoom)),
        memory_(rig, host_.size() * sizeof(T)) {
    set(values);
    write();
  }

  T* host() { return host_.data() + begin_; }
  T* device() const { return static_cast<T*>(memory_.pointer()) + begin_; }
  std::size_t count() const { return count_; }

  /// On the host.
  void set(const std::vector<T>& values) { std::copy(values.begin(), values.end(), host()); }
  /// The GPU has from now on what the host has.
  void write() { memory_.write(host_.data()); }
  /// What the GPU has, after what is queued.
  std::vector<T> read() {
    std::vector<T> all = read_all();
    return {all.begin() + static_cast<std::ptrdiff_t>(begin_), all.end() - kRoom};
  }
  /// Whether both sides have the same bits, or both NaN, and nobody has written to the room. With a
  /// tolerance numbers may differ by as much.
  bool equal(double tolerance = 0) {
    const std::vector<T> got = read_all();
    const T room = untouched(1).front();
    for (std::size_t i = 0; i < got.size(); ++i) {
      const bool in_room = i < begin_ || i >= begin_ + count_;
      if ((in_room && !same(room, host_[i])) ||
          (!same(got[i], host_[i]) && !is_near(got[i], host_[i], tolerance))) {
        return false;
      }
    }
    return true;
  }

 private:
  static constexpr std::size_t kRoom = 16;
  static constexpr int kUntouched = 0x5a;

  static std::vector<T> untouched(std::size_t count) {
    std::vector<T> room(count);
    std::memset(static_cast<void*>(room.data()), kUntouched, count * sizeof(T));
    return room;
  }
  static bool is_near(const T& a, const T& b, double tolerance) {
    if constexpr (std::is_floating_point_v<T>) {
      return std::fabs(static_cast<double>(a) - static_cast<double>(b)) <= tolerance;
    }
    return false;
  }
  std::vector<T> read_all() {
    std::vector<T> all(host_.size());
    memory_.read(all.data());
    return all;
  }

  const std::size_t begin_;
  const std::size_t count_;
  std::vector<T> host_;
  DeviceMemory memory_;
};

}  // namespace aiacc
