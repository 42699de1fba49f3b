#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace dovetail::test {

inline std::string little_endian(uint64_t number, size_t bytes) {
  std::string text;
  for (size_t i = 0; i < bytes; ++i) text += static_cast<char>(number >> (8 * i));
  return text;
}

/// Returns an array in the format of numpy.save. `type` is NumPy's ("|u1"), and `shape` the inside
/// of the tuple ("3, 4").
inline std::string npy(const std::string& type, bool columns_first, const std::string& shape,
                       std::string_view values, char version = 1) {
  std::string header = fmt::format("{{'descr': '{}', 'fortran_order': {}, 'shape': ({}), }}", type,
                                   columns_first ? "True" : "False", shape);
  header.resize((header.size() + 24) / 16 * 16 - 11, ' ');
  header += '\n';
  return std::string("\x93NUMPY") + version + '\0' +
         little_endian(header.size(), version == 1 ? 2 : 4) + header + std::string(values);
}

}  // namespace dovetail::test
