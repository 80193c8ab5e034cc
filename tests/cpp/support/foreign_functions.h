#pragma once

#include <type_traits>

namespace aiacc {

/// Passed alike: both pointers, both integers or enumerations of one size, or blocks of one size.
template <class A, class B>
constexpr bool kAlike = std::is_pointer_v<A> == std::is_pointer_v<B> && sizeof(A) == sizeof(B);

/// Whether two functions may be called alike.
template <class A, class B>
struct SameForm : std::false_type {};
template <class RA, class... A, class RB, class... B>
struct SameForm<RA (*)(A...), RB (*)(B...)> {
  static constexpr bool all() {
    if constexpr (sizeof...(A) == sizeof...(B)) {
      return kAlike<RA, RB> && (kAlike<A, B> && ...);
    }
    return false;
  }
  static constexpr bool value = all();
};

/// Calls a function of a library whose functions take anything.
template <class Result, class... Arguments>
Result call(Result (*function)(Arguments...)) {
  return function(Arguments{}...);
}

}  // namespace aiacc
