#pragma once

#include <cstddef>
#include <string>

namespace aiacc {

/// The beginning of `text`, of at most `most` bytes, that ends where a character of UTF-8 does. Of
/// other bytes as many as there is room for.
std::string cut_text(const std::string& text, std::size_t most);

/// What stands between the quotes of a JSON string. Each byte that is no UTF-8 becomes U+FFFD.
std::string json_text(const std::string& text);

}  // namespace aiacc
