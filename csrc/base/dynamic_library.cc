#include "csrc/base/dynamic_library.h"

#include <dlfcn.h>

#include <utility>

#include "csrc/base/error.h"

namespace aiacc {

DynamicLibrary::DynamicLibrary(const std::string& path, Symbols symbols)
    : path_(path),
      handle_(dlopen(path.c_str(),
                     RTLD_NOW | (symbols == Symbols::kGlobal ? RTLD_GLOBAL : RTLD_LOCAL))) {
  if (handle_ == nullptr) {
    const char* reason = dlerror();
    throw Error(Code::kEngine,
                "[library] cannot load " + path + ": " + (reason ? reason : "unknown reason"));
  }
}

DynamicLibrary::DynamicLibrary(DynamicLibrary&& other) noexcept
    : path_(std::move(other.path_)),
      handle_(std::exchange(other.handle_, nullptr)),
      leaked_(other.leaked_) {}

DynamicLibrary& DynamicLibrary::operator=(DynamicLibrary&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(handle_, other.handle_);
  std::swap(leaked_, other.leaked_);
  return *this;
}

DynamicLibrary::~DynamicLibrary() {
  if (handle_ != nullptr && !leaked_) {
    dlclose(handle_);
  }
}

bool DynamicLibrary::is_mapped(const std::string& path) noexcept {
  void* handle = dlopen(path.c_str(), RTLD_LAZY | RTLD_NOLOAD);
  if (handle == nullptr) {
    dlerror();  // nobody else should see this failure
    return false;
  }
  dlclose(handle);
  return true;
}

void* DynamicLibrary::find(const std::string& symbol) const noexcept {
  return handle_ == nullptr ? nullptr : dlsym(handle_, symbol.c_str());
}

void* DynamicLibrary::require(const std::string& symbol) const {
  void* address = find(symbol);
  if (address == nullptr) {
    throw Error(Code::kEngine,
                "[library] " + path_ + " has no symbol \"" + symbol +
                    "\": it is another library or another version than expected");
  }
  return address;
}

}  // namespace aiacc
