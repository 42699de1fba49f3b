#include <c10/util/Half.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <optional>
#include <type_traits>

#include "dovetail/base/error.h"
#include "dovetail/base/file.h"
#include "dovetail/data/files/npy.h"
#include "dovetail/data/matrix/matrix_part.h"

namespace dovetail::data {
namespace {

[[noreturn]] void refuse(const std::filesystem::path& path, const std::string& reason,
                         const std::string& help) {
  throw UserError(reason, help, path.string());
}

/// Number of rows and columns of an array.
struct Size {
  int64_t rows = 0, columns = 1;
};

Size size_of(const NpyArray& array, const std::filesystem::path& path) {
  const std::vector<int64_t>& sizes = array.sizes;
  if (sizes.empty() || sizes.size() > 2)
    refuse(path, fmt::format("the array has {} dimensions, not one or two", sizes.size()),
           "reshape it to a row for each sample: numpy.save(other, x.reshape(len(x), -1))");
  const Size size{.rows = sizes[0], .columns = sizes.size() == 2 ? sizes[1] : 1};
  if (size.rows == 0 || size.columns == 0) throw UserError("there are no rows", {}, path.string());
  // Checked before memory of the array's size is allocated. A value takes at least one byte.
  if (static_cast<size_t>(size.rows) > array.values.size() / static_cast<size_t>(size.columns))
    refuse_cut_npy(path);
  return size;
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
void read_values(const NpyArray& array, const Size& size, const MatrixColumns& columns,
                 RowTaker& taker, MatrixPart& part) {
  part.values.reserve(static_cast<size_t>(size.rows) * columns.read.size());
  for (int64_t row = 0; row < size.rows; ++row) {
    taker.begin("row", row + 1);
    for (const size_t column : columns.read) {
      const auto c = static_cast<int64_t>(column);
      const int64_t at = array.columns_first ? c * size.rows + row : row * size.columns + c;
      std::array<char, sizeof(T)> bytes;
      std::memcpy(bytes.data(), array.values.data() + at * static_cast<int64_t>(sizeof(T)),
                  sizeof(T));
      if (array.big_endian) std::ranges::reverse(bytes);
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
bool read_as(Types<T...>, const NpyArray& array, const Size& size,
             const std::filesystem::path& path, const MatrixColumns& columns, RowTaker& taker,
             MatrixPart& part) {
  const auto read = [&]<class One>(One*) {
    if (array.type != name_of<One>() && !(array.type == "b1" && std::is_same_v<One, uint8_t>))
      return false;
    const auto count = static_cast<size_t>(size.rows * size.columns);
    if (count > array.values.size() / sizeof(One)) refuse_cut_npy(path);
    read_values<One>(array, size, columns, taker, part);
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
  const NpyArray array = parse_npy(file, path);
  const Size size = size_of(array, path);
  std::vector<std::string> all;
  for (int64_t i = 0; i < size.columns; ++i) all.push_back(numbered_column(static_cast<size_t>(i)));
  const MatrixColumns columns(std::move(all), options, path);
  MatrixParts result(columns);
  result.parts.resize(1);
  RowTaker taker(path, columns, options, result.parts[0]);
  using Numbers = Types<float, double, c10::Half, int8_t, uint8_t, int16_t, uint16_t, int32_t,
                        uint32_t, int64_t, uint64_t>;
  if (!read_as(Numbers(), array, size, path, columns, taker, result.parts[0]))
    refuse(
        path,
        fmt::format(
            "values of type {} are not read, only booleans, integers, float16, float32 and float64",
            printable(array.type)),
        array.type.starts_with('c') ? "write the real and the imaginary part as columns"
                                    : "convert it: numpy.save(other, x.astype(float))");
  return result;
}

}  // namespace dovetail::data
