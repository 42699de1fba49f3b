#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace dovetail::data {

/// Array in a file of NumPy's format .npy.
struct NpyArray {
  std::string type;            ///< NumPy's name of the type without its byte order: "f4", "u1"
  bool big_endian = false;     ///< byte order of the values
  bool columns_first = false;  ///< true: Fortran order, else C order
  std::vector<int64_t> sizes;  ///< size of each dimension
  /// Bytes of the file after the header. They may be fewer than the array needs, if the file is
  /// cut.
  std::string_view values;
};

/// Reads the header of an .npy file, versions 1 to 3
/// (https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html). `file` holds the bytes
/// of the file and must outlive the result. Throws UserError, naming `path`, for another format, a
/// damaged header, or an array with fields.
NpyArray parse_npy(std::string_view file, const std::filesystem::path& path);

/// Throws UserError, naming `path`: the file has fewer values than its header says.
[[noreturn]] void refuse_cut_npy(const std::filesystem::path& path);

}  // namespace dovetail::data
