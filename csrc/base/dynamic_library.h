#pragma once

#include <string>

namespace aiacc {

/// Owns a shared library that was loaded at run time; unloads it on destruction.
class DynamicLibrary {
 public:
  enum class Symbols {
    kLocal,   ///< only `find` sees them
    kGlobal,  ///< libraries loaded later resolve against them
  };

  /// Loads `path` (a path, or a bare name that the system's loader searches). Throws
  /// Error(kEngine) with the loader's reason.
  explicit DynamicLibrary(const std::string& path, Symbols symbols = Symbols::kLocal);
  DynamicLibrary(DynamicLibrary&& other) noexcept;
  DynamicLibrary& operator=(DynamicLibrary&& other) noexcept;
  ~DynamicLibrary();

  /// Whether the process has a library of this path or shared-object name in memory; loads nothing.
  static bool is_mapped(const std::string& path) noexcept;

  const std::string& path() const { return path_; }

  /// Null if there is no such symbol.
  void* find(const std::string& symbol) const noexcept;

  /// The function `symbol` as an `F*`; throws Error(kEngine) if it is missing. The pointer is
  /// valid as long as this object lives.
  template <typename F>
  F* function(const std::string& symbol) const {
    return reinterpret_cast<F*>(require(symbol));
  }

  /// Keeps the library in memory for good: some cannot be unloaded safely (MPI, CUDA).
  void leak() noexcept { leaked_ = true; }

 private:
  void* require(const std::string& symbol) const;

  std::string path_;
  void* handle_ = nullptr;
  bool leaked_ = false;
};

}  // namespace aiacc
