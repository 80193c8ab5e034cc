#include "csrc/control/shm/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>

#include "csrc/base/error.h"

namespace aiacc {
namespace {

constexpr mode_t kOwnerOnly = 0600;
constexpr int kFixedSize = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
constexpr const char* kFolder = "/dev/shm";
/// MADV_POPULATE_WRITE, which headers older than Linux 5.14 lack.
constexpr int kPopulateForWriting = 23;
/// Some kernels undo what they have done when a signal comes: a process with a timer would never
/// get all of it at once.
constexpr std::size_t kAtOnce = std::size_t{1} << 20;

std::string mebibytes(std::size_t bytes) {
  return std::to_string(((bytes - 1) >> 20) + 1) + " MiB";
}

/// The kernel's error, 0 if all is there.
int allocate_file(int descriptor, std::size_t offset, std::size_t bytes) {
  rlimit limit{};
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && offset + bytes > limit.rlim_cur) {
    return EFBIG;  // asking would bring SIGXFSZ, which ends a process that does not ignore it
  }
  const std::size_t end = offset + bytes;
  int error = 0;
  while (offset < end && (error == 0 || error == EINTR)) {
    const std::size_t piece = std::min(kAtOnce, end - offset);
    error = posix_fallocate(descriptor, static_cast<off_t>(offset), static_cast<off_t>(piece));
    offset += error == 0 ? piece : 0;
  }
  return error;
}

/// Sparse memory of a fixed size, without a name; else an invalid one and errno. `in_folder`: a
/// file, whose size stays because no rank changes it.
Socket create_file(std::size_t bytes, bool in_folder) {
  // Not glibc's memfd_create, which older versions do not have.
  Socket file(in_folder ? open(kFolder, O_TMPFILE | O_RDWR | O_CLOEXEC, kOwnerOnly)
                        : static_cast<int>(
                              syscall(SYS_memfd_create, "aiacc", MFD_CLOEXEC | MFD_ALLOW_SEALING)));
  if (file.valid() &&
      (fchmod(file.fd(), kOwnerOnly) != 0 || ftruncate(file.fd(), static_cast<off_t>(bytes)) != 0 ||
       (!in_folder && fcntl(file.fd(), F_ADD_SEALS, kFixedSize) != 0))) {
    const int error = errno;
    file.close();
    errno = error;
  }
  return file;
}

}  // namespace

SharedMemory::SharedMemory(const Socket& descriptor, std::size_t bytes) {
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor.fd(), 0);
  if (data == MAP_FAILED) {
    throw system_error(Code::kEngine, "[shm] no address space for " + mebibytes(bytes), errno);
  }
  data_ = static_cast<std::byte*>(data);
  size_ = bytes;
  madvise(data, bytes, MADV_DONTFORK);
}

SharedMemory& SharedMemory::operator=(SharedMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

SharedMemory::~SharedMemory() {
  if (data_ != nullptr) {
    munmap(data_, size_);
  }
}

std::pair<SharedMemory, Socket> SharedMemory::create(std::size_t bytes) {
  AIACC_CHECK(bytes > 0);
  rlimit limit{};
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && bytes > limit.rlim_cur) {
    throw system_error(Code::kEngine,
                       "[shm] cannot share " + mebibytes(bytes) + " (ulimit -f allows " +
                           std::to_string(limit.rlim_cur) + " bytes)",
                       EFBIG);
  }
  Socket descriptor = create_file(bytes, false);
  const int forbidden = errno;
  if (!descriptor.valid()) {  // as in a sandbox
    descriptor = create_file(bytes, true);
  }
  if (!descriptor.valid()) {
    throw system_error(Code::kEngine,
                       "[shm] cannot make memory to share: memfd_create (errno " +
                           std::to_string(forbidden) + ") and a file without a name in " + kFolder,
                       errno);
  }
  return {SharedMemory(descriptor, bytes), std::move(descriptor)};
}

SharedMemory SharedMemory::map(const Socket& descriptor, std::size_t bytes) {
  struct stat status{};
  if (fstat(descriptor.fd(), &status) != 0) {
    throw system_error(Code::kEngine, "[shm] cannot look at the memory of another rank", errno);
  }
  // Files in /dev/shm have the last seal from the start.
  const int seals = fcntl(descriptor.fd(), F_GET_SEALS);
  const bool fixed = seals == F_SEAL_SEAL || (seals & kFixedSize) == kFixedSize;
  if (!S_ISREG(status.st_mode) || status.st_uid != geteuid() || !fixed ||
      status.st_size != static_cast<off_t>(bytes)) {
    throw Error(Code::kEngine,
                "[shm] another rank gave " + std::to_string(status.st_size) + " bytes of user " +
                    std::to_string(status.st_uid) + (fixed ? "" : ", of a size that may change,") +
                    " (expected " + std::to_string(bytes) + " of user " +
                    std::to_string(geteuid()) +
                    "); start all ranks as one user, with one version of aiacc");
  }
  return {descriptor, bytes};
}

void SharedMemory::allocate(const Socket& descriptor, std::size_t offset, std::size_t bytes) {
  AIACC_CHECK(offset <= size_ && bytes <= size_ - offset && bytes > 0);
  const int error = allocate_file(descriptor.fd(), offset, bytes);
  if (error != 0) {
    throw system_error(Code::kEngine,
                       "[shm] no " + mebibytes(bytes) + " of shared memory are left for a rank (" +
                           "enlarge /dev/shm and the container's limit of memory, or lower " +
                           "AIACC_LANES)",
                       error);
  }
  // Saves page faults later; older kernels do not know it.
  madvise(data_ + offset, bytes, kPopulateForWriting);
}

}  // namespace aiacc
