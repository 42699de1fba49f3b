#include <c10/util/Half.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cstring>
#include <optional>
#include <type_traits>

#include "dovetail/base/error.h"
#include "dovetail/base/file.h"
#include "dovetail/data/matrix/matrix_part.h"

// Reads NumPy's .npy, versions 1 to 3:
// https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
namespace dovetail::data {
namespace {

struct Header {
  std::string type;  ///< "f4"
  bool big = false;  ///< big-endian bytes
  bool columns_first = false;
  int64_t rows = 0, columns = 1;
  size_t data = 0;  ///< offset of the values
};

[[noreturn]] void refuse(const std::filesystem::path& path, const std::string& reason,
                         const std::string& help = "write it with numpy.save") {
  throw UserError(reason, help, path.string());
}

[[noreturn]] void refuse_cut(const std::filesystem::path& path) {
  refuse(path, "the file ends within its values");
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

void read_shape(std::string_view text, Header& header, const std::filesystem::path& path) {
  std::vector<int64_t> sizes;
  for (size_t i = 1; i < text.size() && text[i] != ')';) {
    int64_t size = 0;
    const auto [end, error] = std::from_chars(text.data() + i, text.data() + text.size(), size);
    if (error != std::errc() || size < 0) refuse(path, "the header's shape cannot be read");
    sizes.push_back(size);
    i = static_cast<size_t>(end - text.data());
    while (i < text.size() && (text[i] == ',' || text[i] == ' ')) ++i;
  }
  if (sizes.empty() || sizes.size() > 2)
    refuse(path, fmt::format("the array has {} dimensions, not one or two", sizes.size()),
           "reshape it to a row for each sample: numpy.save(other, x.reshape(len(x), -1))");
  header.rows = sizes[0];
  if (sizes.size() == 2) header.columns = sizes[1];
}

Header read_header(std::string_view file, const std::filesystem::path& path) {
  if (!file.starts_with("\x93NUMPY") || file.size() < 12) refuse(path, "this is no .npy file");
  const size_t length_bytes = file[6] == 1 ? 2 : 4;
  size_t length = 0;
  for (size_t i = 0; i < length_bytes; ++i)
    length |= size_t{static_cast<uint8_t>(file[8 + i])} << (8 * i);
  Header header{.data = 8 + length_bytes + length};
  if (header.data > file.size()) refuse(path, "the file ends within its header");
  const std::string_view text = file.substr(8 + length_bytes, length);
  const std::string_view type = value_of(text, "descr", path);
  if (!type.starts_with('\''))
    refuse(path, "the array has fields, not numbers",
           "make columns of them: numpy.save(other, structured_to_unstructured(x)), from "
           "numpy.lib.recfunctions");
  header.type = type.substr(1, type.find('\'', 1) - 1);
  if (header.type.empty()) refuse(path, "the header's type cannot be read");
  header.big = header.type[0] == '>';
  if (std::string_view("<>|=").find(header.type[0]) != std::string_view::npos)
    header.type.erase(0, 1);
  header.columns_first = value_of(text, "fortran_order", path).starts_with("True");
  read_shape(value_of(text, "shape", path), header, path);
  // Checked before memory of the array's size is allocated. A value takes at least one byte.
  if (header.rows == 0 || header.columns == 0)
    throw UserError("there are no rows", {}, path.string());
  const size_t room = file.size() - header.data;
  if (static_cast<size_t>(header.rows) > room / static_cast<size_t>(header.columns))
    refuse_cut(path);
  return header;
}

template <class T>
void take_value(T value, RowTaker& taker) {
  if constexpr (std::is_integral_v<T> && (std::is_signed_v<T> || sizeof(T) < 8))
    taker.add_integer(static_cast<int64_t>(value));
  else if constexpr (std::is_integral_v<T>)
    value >> 63U == 0 ? taker.add_integer(static_cast<int64_t>(value))
                      : taker.add_digits(std::to_string(value));
  else
    taker.add(static_cast<double>(value));
}

template <class T>
void read_values(const char* data, const Header& header, const MatrixColumns& columns,
                 RowTaker& taker, MatrixPart& part) {
  part.values.reserve(static_cast<size_t>(header.rows) * columns.read.size());
  for (int64_t row = 0; row < header.rows; ++row) {
    taker.begin("row", row + 1);
    for (const size_t column : columns.read) {
      const auto c = static_cast<int64_t>(column);
      const int64_t at = header.columns_first ? c * header.rows + row : row * header.columns + c;
      std::array<char, sizeof(T)> bytes;
      std::memcpy(bytes.data(), data + at * static_cast<int64_t>(sizeof(T)), sizeof(T));
      if (header.big) std::ranges::reverse(bytes);
      take_value(std::bit_cast<T>(bytes), taker);
    }
    taker.end();
  }
}

template <class... T>
struct Types {};

/// Returns NumPy's name of the type `T`, without its byte order.
template <class T>
std::string name_of() {
  const bool real = std::is_floating_point_v<T> || std::is_same_v<T, c10::Half>;
  return fmt::format("{}{}", real ? 'f' : std::is_signed_v<T> ? 'i' : 'u', sizeof(T));
}

template <class... T>
bool read_as(Types<T...>, const std::string_view file, const Header& header,
             const std::filesystem::path& path, const MatrixColumns& columns, RowTaker& taker,
             MatrixPart& part) {
  const auto read = [&]<class One>(One*) {
    if (header.type != name_of<One>() && !(header.type == "b1" && std::is_same_v<One, uint8_t>))
      return false;
    const auto count = static_cast<size_t>(header.rows * header.columns);
    if (count > (file.size() - header.data) / sizeof(One)) refuse_cut(path);
    read_values<One>(file.data() + header.data, header, columns, taker, part);
    return true;
  };
  return (read(static_cast<T*>(nullptr)) || ...);
}

}  // namespace

MatrixParts read_npy_parts(const std::filesystem::path& path, const InputHead& head,
                           const std::string& member, const MatrixOptions& options) {
  static_assert(std::endian::native == std::endian::little);
  MappedFile archived;
  std::optional<MappedInput> whole;
  std::string_view file;
  if (head.kind == InputKind::kZip) {
    if (!head.is_plain())
      throw UserError(fmt::format("this is {}", head.name),
                      "unpack it first; .npz is packed in itself", path.string());
    archived = map_zip_member(path, member, file);
  } else {
    whole.emplace(path, head);
    file = whole->bytes();
  }
  const Header header = read_header(file, path);
  std::vector<std::string> all;
  for (int64_t i = 0; i < header.columns; ++i)
    all.push_back(numbered_column(static_cast<size_t>(i)));
  const MatrixColumns columns(std::move(all), options, path);
  MatrixParts result(columns);
  result.parts.resize(1);
  RowTaker taker(path, columns, options, result.parts[0]);
  using Numbers = Types<float, double, c10::Half, int8_t, uint8_t, int16_t, uint16_t, int32_t,
                        uint32_t, int64_t, uint64_t>;
  if (!read_as(Numbers(), file, header, path, columns, taker, result.parts[0]))
    refuse(
        path,
        fmt::format(
            "values of type {} are not read, only booleans, integers, float16, float32 and float64",
            printable(header.type)),
        header.type.starts_with('c') ? "write the real and the imaginary part as columns"
                                     : "convert it: numpy.save(other, x.astype(float))");
  return result;
}

}  // namespace dovetail::data
