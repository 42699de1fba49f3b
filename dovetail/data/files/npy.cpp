#include "dovetail/data/files/npy.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "dovetail/base/error.h"

namespace dovetail::data {
namespace {

[[noreturn]] void refuse(const std::filesystem::path& path, const std::string& reason,
                         const std::string& help = "write it with numpy.save") {
  throw UserError(reason, help, path.string());
}

/// Returns the text after `'key':` in the header, which is a Python dictionary.
std::string_view value_of(std::string_view header, std::string_view key,
                          const std::filesystem::path& path) {
  const std::string quoted = fmt::format("'{}':", key);
  const size_t at = header.find(quoted);
  if (at == std::string_view::npos) refuse(path, fmt::format("the header has no {}", key));
  header.remove_prefix(at + quoted.size());
  header.remove_prefix(std::min(header.find_first_not_of(' '), header.size()));
  return header;
}

std::vector<int64_t> read_shape(std::string_view text, const std::filesystem::path& path) {
  std::vector<int64_t> sizes;
  for (size_t i = 1; i < text.size() && text[i] != ')';) {
    int64_t size = 0;
    const auto [end, error] = std::from_chars(text.data() + i, text.data() + text.size(), size);
    if (error != std::errc() || size < 0) refuse(path, "the header's shape cannot be read");
    sizes.push_back(size);
    i = static_cast<size_t>(end - text.data());
    while (i < text.size() && (text[i] == ',' || text[i] == ' ')) ++i;
  }
  return sizes;
}

}  // namespace

NpyArray parse_npy(std::string_view file, const std::filesystem::path& path) {
  if (!file.starts_with("\x93NUMPY") || file.size() < 12) refuse(path, "this is no .npy file");
  const size_t length_bytes = file[6] == 1 ? 2 : 4;
  size_t length = 0;
  for (size_t i = 0; i < length_bytes; ++i)
    length |= size_t{static_cast<uint8_t>(file[8 + i])} << (8 * i);
  const size_t begin = 8 + length_bytes;
  if (length > file.size() - begin) refuse(path, "the file ends within its header");
  const std::string_view text = file.substr(begin, length);
  const std::string_view type = value_of(text, "descr", path);
  if (!type.starts_with('\''))
    refuse(path, "the array has fields, not numbers",
           "make columns of them: numpy.save(other, structured_to_unstructured(x)), from "
           "numpy.lib.recfunctions");
  NpyArray array{.type = std::string(type.substr(1, type.find('\'', 1) - 1)),
                 .values = file.substr(begin + length)};
  if (array.type.empty()) refuse(path, "the header's type cannot be read");
  array.big_endian = array.type[0] == '>';
  if (std::string_view("<>|=").find(array.type[0]) != std::string_view::npos)
    array.type.erase(0, 1);
  array.columns_first = value_of(text, "fortran_order", path).starts_with("True");
  array.sizes = read_shape(value_of(text, "shape", path), path);
  return array;
}

void refuse_cut_npy(const std::filesystem::path& path) {
  refuse(path, "the file ends within its values");
}

}  // namespace dovetail::data
