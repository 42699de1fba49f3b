#include "dovetail/io/safetensors.h"

#include <ATen/ops/empty.h>
#include <c10/core/ScalarType.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "dovetail/base/error.h"
#include "dovetail/base/json_fault.h"
#include "dovetail/base/schema/schema.h"

namespace dovetail::io {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian");

constexpr uint64_t kLengthBytes = 8;
/// Limit of the reference implementation. A longer header is an attack or not a safetensors file.
constexpr uint64_t kMaxHeaderBytes = 100'000'000;
constexpr size_t kMaxDimensions = 64;  // limit of ATen's iterators
constexpr const char* kMetadataKey = "__metadata__";

struct DtypeName {
  at::ScalarType dtype;
  std::string_view name;
};
/// Dtypes in the order in which the reference implementation lays data out.
constexpr DtypeName kDtypes[] = {
    {at::kLong, "I64"},
    {at::kDouble, "F64"},
    {at::kFloat, "F32"},
    {at::kInt, "I32"},
    {at::kBFloat16, "BF16"},
    {at::kHalf, "F16"},
    {at::kShort, "I16"},
    {at::kFloat8_e8m0fnu, "F8_E8M0"},
    {at::kFloat8_e4m3fn, "F8_E4M3"},
    {at::kFloat8_e5m2, "F8_E5M2"},
    {at::kChar, "I8"},
    {at::kByte, "U8"},
    {at::kBool, "BOOL"},
};

/// Dtypes of the format that a tensor here cannot have.
constexpr std::string_view kOtherDtypes[] = {
    "F4", "F6_E2M3", "F6_E3M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "U16", "U32", "U64", "C64", "C128"};

/// Error for a valid file with a dtype of kOtherDtypes.
class UnsupportedDtype : public UserError {
  using UserError::UserError;
};

std::string supported_dtypes() {
  std::vector<std::string_view> names;
  for (const auto& d : kDtypes) names.push_back(d.name);
  return fmt::format("{}", fmt::join(names, ", "));
}

size_t layout_rank(const std::string& name, at::ScalarType dtype) {
  const auto* found = std::ranges::find(kDtypes, dtype, &DtypeName::dtype);
  user_check(found != std::end(kDtypes),
             "safetensors: tensor '{}' is {}, which the format does not have here (it has {})",
             name, c10::toString(dtype), supported_dtypes());
  return static_cast<size_t>(found - std::begin(kDtypes));
}

struct Piece {
  std::string name;
  at::Tensor tensor;
  size_t rank;
};

std::vector<Piece> lay_out(const std::map<std::string, at::Tensor>& tensors) {
  std::vector<Piece> pieces;
  for (const auto& [name, tensor] : tensors) {
    DOVETAIL_CHECK(tensor.defined(), "safetensors: tensor '{}' is undefined", name);
    user_check(name != kMetadataKey,
               "safetensors: a tensor cannot be called '{}', the format's own key", kMetadataKey);
    pieces.push_back({name, tensor, layout_rank(name, tensor.scalar_type())});
  }
  std::ranges::stable_sort(pieces, {}, &Piece::rank);  // names are already in the map's order
  return pieces;
}

std::string header_of(const std::vector<Piece>& pieces,
                      const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header[kMetadataKey] = metadata;
  uint64_t offset = 0;
  for (const auto& piece : pieces) {
    const uint64_t end = offset + piece.tensor.nbytes();
    header[piece.name] = {
        {"dtype", kDtypes[piece.rank].name},
        {"shape", std::vector<int64_t>(piece.tensor.sizes().begin(), piece.tensor.sizes().end())},
        {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const nlohmann::json::exception&) {
    throw UserError("safetensors: a tensor's name or the metadata is not valid UTF-8");
  }
  text.resize((text.size() + 7) / 8 * 8, ' ');
  user_check(text.size() <= kMaxHeaderBytes,
             "safetensors: a header of {} bytes is over the format's limit of {}", text.size(),
             kMaxHeaderBytes);
  return text;
}

/// Parses a header. nlohmann keeps the last of two equal keys and nests without limit. Both are
/// refused here while parsing.
nlohmann::json parse_header(std::string_view text) {
  constexpr int kMaxDepth = 3;  // header, entry, shape
  std::vector<std::set<std::string>> keys;
  const auto callback = [&](int depth, nlohmann::json::parse_event_t event,
                            nlohmann::json& parsed) {
    using Event = nlohmann::json::parse_event_t;
    if ((event == Event::object_start || event == Event::array_start) && depth >= kMaxDepth)
      throw UserError("the header is nested too deeply");
    if (event == Event::object_start) {
      keys.resize(static_cast<size_t>(depth));
      keys.emplace_back();
    }
    if (event == Event::key && !keys.back().insert(parsed.get<std::string>()).second)
      throw UserError(
          fmt::format("key '{}' occurs twice in the header", parsed.get<std::string>()));
    if (event == Event::object_end) keys.resize(static_cast<size_t>(depth));
    return true;
  };
  try {
    return nlohmann::json::parse(text.begin(), text.end(), callback);
  } catch (const nlohmann::json::exception& error) {
    throw UserError(fmt::format("the header is not JSON ({})", json_fault(error)));
  }
}

const nlohmann::json& member(const nlohmann::json& entry, const char* key) {
  const auto found = entry.find(key);
  user_check(found != entry.end(), "'{}' is missing", key);
  return *found;
}

at::ScalarType dtype_named(const nlohmann::json& value) {
  user_check(value.is_string(), "dtype is not a string");
  const auto* found = std::ranges::find(
      kDtypes, std::string_view(value.get_ref<const std::string&>()), &DtypeName::name);
  if (found != std::end(kDtypes)) return found->dtype;
  const auto& name = value.get_ref<const std::string&>();
  if (std::ranges::find(kOtherDtypes, name) != std::end(kOtherDtypes))
    throw UnsupportedDtype(fmt::format("has dtype {}, which is not supported (supported are {})",
                                       name, supported_dtypes()));
  throw UserError(fmt::format("dtype '{}' is not a type of the format; supported are {}", name,
                              supported_dtypes()));
}

std::vector<int64_t> shape_in(const nlohmann::json& value) {
  user_check(value.is_array() && value.size() <= kMaxDimensions,
             "shape is not a list of at most {} sizes", kMaxDimensions);
  std::vector<int64_t> shape;
  for (const auto& size : value) {
    user_check(size.is_number_unsigned() &&
                   size.get<uint64_t>() <= uint64_t{std::numeric_limits<int64_t>::max()},
               "shape has something that is not a size");
    shape.push_back(size.get<int64_t>());
  }
  return shape;
}

/// Bytes of a tensor. Zeros count as ones in the overflow check, because ATen multiplies strides
/// the same way.
uint64_t bytes_of(const std::vector<int64_t>& shape, at::ScalarType dtype) {
  auto bytes = static_cast<int64_t>(c10::elementSize(dtype));
  for (const int64_t size : shape)
    user_check(!__builtin_mul_overflow(bytes, std::max<int64_t>(size, 1), &bytes),
               "shape [{}] overflows 64 bits", fmt::join(shape, ", "));
  return std::ranges::find(shape, 0) != shape.end() ? 0 : static_cast<uint64_t>(bytes);
}

std::pair<uint64_t, uint64_t> offsets_in(const nlohmann::json& value) {
  user_check(value.is_array() && value.size() == 2 && value[0].is_number_unsigned() &&
                 value[1].is_number_unsigned(),
             "data_offsets is not a pair of offsets");
  return {value[0].get<uint64_t>(), value[1].get<uint64_t>()};
}

}  // namespace

std::string write_safetensors(const std::filesystem::path& path,
                              const std::map<std::string, at::Tensor>& tensors,
                              const std::map<std::string, std::string>& metadata) {
  const auto pieces = lay_out(tensors);
  const std::string header = header_of(pieces, metadata);
  AtomicFile file(path);
  Sha256 digest;
  const auto put = [&](const void* data, size_t bytes) {
    digest.update(data, bytes);
    file.write(data, bytes);
  };
  const uint64_t length = header.size();
  put(&length, kLengthBytes);
  put(header.data(), header.size());
  for (const auto& piece : pieces) {
    // One tensor at a time, so that a copy from another device or layout is short-lived.
    const auto flat = piece.tensor.detach().to(at::kCPU).contiguous();
    put(flat.const_data_ptr(), flat.nbytes());
  }
  file.commit();
  return digest.hex_digest();
}

SafetensorsStream::SafetensorsStream(const std::filesystem::path& path, const std::string& name,
                                     at::ScalarType dtype, const std::vector<int64_t>& shape)
    : file_(path), name_(name), dtype_(dtype) {
  const at::Tensor sizes_alone = at::empty(shape, at::TensorOptions(dtype).device(at::kMeta));
  const std::string header = header_of(lay_out({{name, sizes_alone}}), {});
  const uint64_t length = header.size();
  left_ = kLengthBytes + length + sizes_alone.nbytes();
  put(&length, kLengthBytes);
  put(header.data(), header.size());
}

void SafetensorsStream::put(const void* data, size_t bytes) {
  DOVETAIL_CHECK(bytes <= left_, "safetensors: '{}' gets {} bytes more than its shape has", name_,
                 bytes - left_);
  digest_.update(data, bytes);
  file_.write(data, bytes);
  left_ -= bytes;
}

void SafetensorsStream::append(const at::Tensor& rows) {
  DOVETAIL_CHECK(rows.scalar_type() == dtype_, "safetensors: rows of '{}' are {}, not {}", name_,
                 c10::toString(rows.scalar_type()), c10::toString(dtype_));
  const at::Tensor flat = rows.contiguous();
  put(flat.const_data_ptr(), flat.nbytes());
}

std::string SafetensorsStream::commit() {
  DOVETAIL_CHECK(left_ == 0, "safetensors: '{}' lacks {} bytes", name_, left_);
  file_.commit();
  return digest_.hex_digest();
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : file_(path), name_(path.string()) {
  const auto bytes = file_.bytes();
  parse({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

SafetensorsFile::SafetensorsFile(std::string_view bytes, std::string name)
    : name_(std::move(name)) {
  parse(bytes);
}

void SafetensorsFile::refuse(const std::string& reason) const {
  throw UserError(fmt::format("{}: not a usable safetensors file: {}", name_, reason),
                  "the file is damaged, cut short or of another format; get or write it again");
}

void SafetensorsFile::parse(std::string_view bytes) {
  if (bytes.size() < kLengthBytes)
    refuse(fmt::format("{} bytes are too short for a header", bytes.size()));
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), kLengthBytes);
  const uint64_t rest = bytes.size() - kLengthBytes;
  if (bytes.starts_with("version https://git-lfs"))
    throw UserError(fmt::format("{}: this is a pointer of Git LFS in place of the file", name_),
                    "get the file itself: git lfs pull");
  if (length > rest)
    refuse(
        fmt::format("its header should have {} bytes, but {} are left in the file", length, rest));
  if (length > kMaxHeaderBytes)
    refuse(fmt::format("its header of {} bytes is over the limit of {}", length, kMaxHeaderBytes));
  data_ = bytes.substr(kLengthBytes + length);

  std::string tensor;
  try {
    const auto header = parse_header(bytes.substr(kLengthBytes, length));
    user_check(header.is_object(), "the header is not a JSON object");
    for (const auto& [key, value] : header.items()) {
      tensor = key;
      user_check(value.is_object(), "is not an object");
      if (key == kMetadataKey) {
        for (const auto& [name, text] : value.items()) {
          user_check(text.is_string(), "'{}' is not a string", name);
          metadata_[name] = text.get<std::string>();
        }
        continue;
      }
      const auto [begin, end] = offsets_in(member(value, "data_offsets"));
      Entry entry{dtype_named(member(value, "dtype")), shape_in(member(value, "shape")), begin,
                  end};
      const uint64_t size = bytes_of(entry.shape, entry.dtype);
      user_check(begin <= end && end <= data_.size(),
                 "data_offsets [{}, {}] are outside of the {} bytes of data", begin, end,
                 data_.size());
      user_check(end - begin == size, "has {} bytes, but its dtype and shape need {}", end - begin,
                 size);
      entries_.emplace(key, std::move(entry));
    }
  } catch (const UnsupportedDtype& error) {
    throw UserError(
        fmt::format("{}: tensor '{}' {}", name_, tensor, error.what()),
        "convert this tensor with the safetensors package of Python, or leave it out of the file");
  } catch (const UserError& error) {
    refuse(tensor.empty() ? error.what() : fmt::format("'{}' {}", tensor, error.what()));
  }

  std::vector<std::pair<uint64_t, uint64_t>> ranges;
  for (const auto& [name, entry] : entries_) ranges.emplace_back(entry.begin, entry.end);
  std::ranges::sort(ranges);
  uint64_t end = 0;
  for (const auto& range : ranges) {
    if (range.first != end)
      refuse(fmt::format("tensors {} at byte {} of the data",
                         range.first < end ? "overlap" : "leave a hole", end));
    end = range.second;
  }
  if (end != data_.size())
    refuse(fmt::format("{} bytes follow the last tensor", data_.size() - end));
}

std::vector<std::string> SafetensorsFile::names() const {
  std::vector<std::string> names;
  for (const auto& [name, entry] : entries_) names.push_back(name);
  return names;
}

bool SafetensorsFile::contains(const std::string& name) const { return entries_.contains(name); }
std::vector<int64_t> SafetensorsFile::shape(const std::string& name) const {
  return entry(name).shape;
}
at::ScalarType SafetensorsFile::dtype(const std::string& name) const { return entry(name).dtype; }

const SafetensorsFile::Entry& SafetensorsFile::entry(const std::string& name) const {
  const auto found = entries_.find(name);
  if (found != entries_.end()) return found->second;
  const auto nearest = nearest_word(name, names());
  throw UserError(
      fmt::format("{}: there is no tensor '{}' among its {}", name_, name, entries_.size()),
      nearest.empty() ? "" : fmt::format("did you mean '{}'?", nearest));
}

at::Tensor SafetensorsFile::copy_of(const std::string& name, const Entry& e) const {
  auto tensor = at::empty(e.shape, at::TensorOptions(e.dtype));
  const auto bytes = data_.substr(e.begin, e.end - e.begin);
  // A bool with another bit pattern is undefined behaviour in everything that reads it.
  if (e.dtype == at::kBool && std::ranges::any_of(bytes, [](char c) { return c != 0 && c != 1; }))
    refuse(fmt::format("BOOL tensor '{}' holds a byte that is neither 0 nor 1", name));
  if (!bytes.empty()) std::memcpy(tensor.mutable_data_ptr(), bytes.data(), bytes.size());
  return tensor;
}

at::Tensor SafetensorsFile::read(const std::string& name) const {
  return copy_of(name, entry(name));
}

at::Tensor SafetensorsFile::read_rows(const std::string& name, int64_t first, int64_t count) const {
  Entry part = entry(name);
  DOVETAIL_CHECK(!part.shape.empty() && first >= 0 && count >= 0 && first + count <= part.shape[0],
                 "{}: there are no rows {} to {} of '{}'", name_, first, first + count, name);
  const uint64_t row_bytes =
      part.shape[0] == 0 ? 0 : (part.end - part.begin) / static_cast<uint64_t>(part.shape[0]);
  part.begin += static_cast<uint64_t>(first) * row_bytes;
  part.end = part.begin + static_cast<uint64_t>(count) * row_bytes;
  part.shape[0] = count;
  at::Tensor rows = copy_of(name, part);
  if (file_.bytes().empty()) return rows;
  // Earlier rows may have left the page in which these begin resident. A page fault also maps pages
  // before it.
  constexpr size_t kAround = size_t{64} << 10;
  const auto data =
      static_cast<size_t>(reinterpret_cast<const std::byte*>(data_.data()) - file_.bytes().data());
  const size_t begin = data + part.begin;
  file_.release(begin - std::min(begin, kAround), data + part.end);
  return rows;
}

}  // namespace dovetail::io
