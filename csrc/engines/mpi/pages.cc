#include "csrc/engines/mpi/pages.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "csrc/base/error.h"

namespace aiacc {
namespace {

constexpr int kReadWrite = PROT_READ | PROT_WRITE;

// Not shm_open, which is in a library of its own with older versions of glibc.
std::string file_of(const std::string& name) { return "/dev/shm/" + name; }

[[noreturn]] void fail(const std::string& what, int error) {
  throw Error(Code::kEngine, "[mpi] " + what + ": " + std::strerror(error));
}

/// A descriptor that is closed at the end.
class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (number_ >= 0) {
      close(number_);
    }
  }
  int number() const { return number_; }

 private:
  const int number_;
};

void* map(std::size_t bytes, int flags, int descriptor) {
  void* data = mmap(nullptr, bytes, kReadWrite, flags, descriptor, 0);
  if (data == MAP_FAILED) {
    fail("no address space for " + std::to_string(bytes) + " bytes", errno);
  }
  return data;
}

/// A new file, locked. The lock says that its maker lives, to processes of other containers, too:
/// mapped pages hold it, whoever else maps them does not.
int create_locked(const std::string& path) {
  while (true) {
    const int file = ::open(path.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
    if (file < 0) {
      return file;
    }
    while (flock(file, LOCK_SH) != 0 && errno == EINTR) {
    }
    struct stat status{};
    if (fstat(file, &status) != 0 || status.st_nlink > 0) {
      return file;
    }
    close(file);  // it was swept before it was locked
  }
}

}  // namespace

Pages::Pages(Pages&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

Pages& Pages::operator=(Pages&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

Pages::~Pages() {
  if (data_ != nullptr) {
    munmap(data_, size_);
  }
}

Pages Pages::own(std::size_t bytes) { return {map(bytes, MAP_PRIVATE | MAP_ANONYMOUS, -1), bytes}; }

Pages Pages::create(const std::string& name, std::size_t bytes) {
  const Descriptor file(create_locked(file_of(name)));
  if (file.number() < 0) {
    fail("cannot create " + file_of(name), errno);
  }
  int error = EINTR;
  while (error == EINTR) {
    error = posix_fallocate(file.number(), 0, static_cast<off_t>(bytes));
  }
  try {
    if (error != 0) {
      fail("/dev/shm has no " + std::to_string(bytes) + " bytes left", error);
    }
    return {map(bytes, MAP_SHARED, file.number()), bytes};
  } catch (...) {
    remove(name);
    throw;
  }
}

Pages Pages::open(const std::string& name, std::size_t bytes) {
  const Descriptor file(::open(file_of(name).c_str(), O_RDWR | O_CLOEXEC));
  if (file.number() < 0) {
    fail("cannot open " + file_of(name) + " of another rank", errno);
  }
  return {map(bytes, MAP_SHARED, file.number()), bytes};
}

void Pages::remove(const std::string& name) noexcept { unlink(file_of(name).c_str()); }

void Pages::sweep(const std::string& prefix) noexcept {
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir("/dev/shm"), &closedir);
  while (const dirent* entry = folder == nullptr ? nullptr : readdir(folder.get())) {
    if (std::strncmp(entry->d_name, prefix.c_str(), prefix.size()) != 0) {
      continue;
    }
    const Descriptor file(
        openat(dirfd(folder.get()), entry->d_name, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
    if (file.number() >= 0 && flock(file.number(), LOCK_EX | LOCK_NB) == 0) {
      unlinkat(dirfd(folder.get()), entry->d_name, 0);
    }
  }
}

void Pages::give_up() noexcept {
  if (data_ != nullptr) {
    // In place of the old pages, so that there is no moment in which nothing is there.
    constexpr int kFresh = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
    if (mmap(data_, size_, kReadWrite, kFresh, -1, 0) == MAP_FAILED) {
      madvise(data_, size_, MADV_DONTNEED);
    }
    data_ = nullptr;
    size_ = 0;
  }
}

}  // namespace aiacc
