#include "dovetail/data/files/open_input.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <system_error>
#include <utility>
#include <vector>

#include "dovetail/base/error.h"
#include "dovetail/data/files/parquet.h"
#include "dovetail/data/files/utf8.h"

namespace dovetail::data {
namespace {

namespace fs = std::filesystem;
using namespace std::string_view_literals;

constexpr size_t kHeadBytes = size_t{64} << 10, kPieceBytes = size_t{256} << 10;
constexpr std::string_view kUtf8Mark = "\xEF\xBB\xBF";

struct Magic {
  std::string_view bytes;
  const char *name, *remedy;
};

constexpr const char* kUnpack = "unpack it first";
constexpr const char* kAsParquet = "write it as Parquet with the library that reads it";
constexpr const char* kLeaveOut =
    "leave it out, or write its numbers or texts to a file of their own";

/// Formats that no reader accepts, for messages.
constexpr std::array kOthers = {
    Magic{"\xFD"
          "7zXZ\0"sv,
          "xz-compressed data", "unpack it first: xz -dk"},
    Magic{"\x04\x22\x4D\x18", "lz4-compressed data", "unpack it first: lz4 -d"},
    Magic{"7z\xBC\xAF", "a 7-zip archive", kUnpack},
    Magic{"Rar!", "a RAR archive", kUnpack},
    Magic{"ARROW1\0"sv, "an Arrow or Feather file",
          "write it as Parquet, for example by pandas.read_feather(file).to_parquet(other)"},
    Magic{"FEA1", "a Feather file",
          "write it as Parquet, for example by pandas.read_feather(file).to_parquet(other)"},
    Magic{"\xFF\xFF\xFF\xFF", "binary data, maybe an Arrow stream",
          "write it as Parquet, for example by to_parquet of the library `datasets`"},
    Magic{"ORC", "an ORC file",
          "write it as Parquet, for example by pandas.read_orc(file).to_parquet(other)"},
    Magic{"Obj\x01", "an Avro file", kAsParquet},
    Magic{"\x89HDF", "an HDF5 file", kAsParquet},
    Magic{"CDF", "a NetCDF file", kAsParquet},
    Magic{"SQLite format 3\0"sv, "an SQLite database", kAsParquet},
    Magic{"\x80\x04\x95", "a pickle of Python",
          "write it as Parquet, for example by pandas.read_pickle(file).to_parquet(other)"},
    Magic{"\x80\x05\x95", "a pickle of Python",
          "write it as Parquet, for example by pandas.read_pickle(file).to_parquet(other)"},
    Magic{"\xD0\xCF\x11\xE0", "a document of an old Office", "save it as text or CSV"},
    Magic{"%PDF-", "a PDF document", kLeaveOut},
    Magic{"\x89PNG", "a PNG image", kLeaveOut},
    Magic{"\xFF\xD8\xFF", "a JPEG image", kLeaveOut},
    Magic{"GIF8", "a GIF image", kLeaveOut},
    Magic{"\x7F"
          "ELF",
          "a program", kLeaveOut},
    Magic{"version https://git-lfs.github.com/spec/", "a pointer of Git LFS in place of the file",
          "get the file itself: git lfs pull"},
};

Packing packing_of(std::string_view head) {
  if (head.starts_with("\x1F\x8B")) return Packing::kGzip;
  if (head.starts_with("\x28\xB5\x2F\xFD")) return Packing::kZstd;
  // Some writers of zstd begin with a skippable frame.
  if (head.size() >= 4 && (head[0] & 0xF0) == 0x50 && head.substr(1, 3) == "\x2A\x4D\x18")
    return Packing::kZstd;
  if (head.size() >= 10 && head.starts_with("BZh") && head[3] >= '1' && head[3] <= '9' &&
      (head.substr(4, 6) == "\x31\x41\x59\x26\x53\x59" ||
       head.substr(4, 6) == "\x17\x72\x45\x38\x50\x90"))
    return Packing::kBzip2;
  return Packing::kNone;
}

const char* packing_name(Packing packing) {
  switch (packing) {
    case Packing::kNone:
      return "";
    case Packing::kGzip:
      return "gzip";
    case Packing::kZstd:
      return "zstd";
    case Packing::kBzip2:
      return "bz2";
  }
  return "";
}

/// Returns true for UTF-16 without a mark. Most first bytes with an even number are then zero and
/// no others, or most with an odd number.
bool is_unmarked_utf16(std::string_view head) {
  const size_t pairs = std::min<size_t>(head.size() / 2, 64);
  size_t zeros[2] = {0, 0};
  for (size_t i = 0; i < 2 * pairs; ++i) zeros[i % 2] += head[i] == '\0';
  const auto [fewer, more] = std::minmax(zeros[0], zeros[1]);
  return pairs >= 2 && fewer == 0 && 4 * more >= 3 * pairs;
}

/// Returns true for many control characters, or for a zero byte in bytes that are not UTF-8.
bool is_binary(std::string_view head) {
  size_t controls = 0;
  bool has_zero = false;
  for (const char c : head) {
    const auto byte = static_cast<unsigned char>(c);
    has_zero |= byte == 0;
    controls += byte < 0x20 && (byte < '\t' || byte > '\r') && byte != 0x1B;
  }
  if (10 * controls > head.size()) return true;
  if (!has_zero) return false;
  // The head may end within a character.
  for (size_t cut = 0; cut < 4 && cut <= head.size(); ++cut)
    if (is_valid_utf8(head.substr(0, head.size() - cut))) return false;
  return true;
}

void set_kind(std::string_view bytes, InputHead& head) {
  const auto kind = [&](InputKind found, std::string name, const char* remedy) {
    head.kind = found;
    head.name = std::move(name);
    head.remedy = remedy;
  };
  const auto other = [&](std::string name, const char* remedy) {
    kind(InputKind::kOther, std::move(name), remedy);
  };
  constexpr const char* kUtf8 = "save it as UTF-8";
  if (bytes.starts_with("PAR1")) return kind(InputKind::kParquet, "a Parquet file", kUnpack);
  if (bytes.starts_with("PARE"))
    return other("an encrypted Parquet file", "write it without encryption");
  if (bytes.starts_with("\x93NUMPY"))
    return kind(
        InputKind::kNpy, "a NumPy array",
        "write it as Parquet, for example by pandas.DataFrame(numpy.load(file)).to_parquet(other)");
  if (bytes.starts_with("PK\x03\x04") || bytes.starts_with("PK\x05\x06"))
    return kind(InputKind::kZip, "a zip archive", "unpack it first: unzip");
  if (const Packing again = packing_of(bytes); again != Packing::kNone)
    return other(fmt::format("{}-compressed data", packing_name(again)), kUnpack);
  for (const Magic& magic : kOthers)
    // ORC, CDF and FEA1 are letters only, so that a text may begin with them.
    if (bytes.starts_with(magic.bytes) &&
        ((magic.bytes != "ORC" && magic.bytes != "CDF" && magic.bytes != "FEA1") ||
         is_binary(bytes)))
      return other(magic.name, magic.remedy);
  constexpr size_t kTarMagic = 257;
  if (bytes.size() > kTarMagic && bytes.substr(kTarMagic).starts_with("ustar"))
    return other("a tar archive", "unpack it first: tar -xf");
  if (bytes.starts_with("\xFF\xFE\0\0"sv) || bytes.starts_with("\0\0\xFE\xFF"sv))
    return other("text in UTF-32", kUtf8);
  if (bytes.starts_with("\xFF\xFE")) {
    head.encoding = Encoding::kUtf16Little;
  } else if (bytes.starts_with("\xFE\xFF")) {
    head.encoding = Encoding::kUtf16Big;
  } else if (is_unmarked_utf16(bytes)) {
    return other("text in UTF-16 without a byte order mark", kUtf8);
  } else if (is_binary(bytes)) {
    return other("binary data", kLeaveOut);
  }
  if (head.encoding != Encoding::kUtf8) head.name = "text in UTF-16";
}

/// Throws for a folder, a pipe or a device. Opening a pipe may wait forever.
const fs::path& checked_file(const fs::path& path) {
  std::error_code error;
  if (fs::is_directory(path, error))
    throw UserError("this is a folder, not a file", "give a file in it", path.string());
  if (fs::exists(path, error) && !fs::is_regular_file(path, error))
    throw UserError("this is a pipe or a device, not a file",
                    "write what comes from it to a file, and give that", path.string());
  return path;
}

class FileStream : public ByteStream {
 public:
  explicit FileStream(const fs::path& path)
      : path_(checked_file(path)), file_(path, std::ios::binary) {
    if (!file_)
      throw UserError(fmt::format("cannot open the file: {}", std::strerror(errno)), {},
                      path.string());
  }
  size_t read(char* to, size_t bytes) override {
    file_.read(to, static_cast<std::streamsize>(bytes));
    if (file_.bad()) throw UserError("cannot read the file", {}, path_.string());
    return static_cast<size_t>(file_.gcount());
  }

 private:
  fs::path path_;
  std::ifstream file_;
};

size_t read_all(ByteStream& stream, char* to, size_t bytes) {
  size_t done = 0;
  while (done < bytes) {
    const size_t more = stream.read(to + done, bytes - done);
    if (more == 0) break;
    done += more;
  }
  return done;
}

std::string read_head(ByteStream& stream) {
  std::string head(kHeadBytes, '\0');
  head.resize(read_all(stream, head.data(), head.size()));
  return head;
}

std::unique_ptr<ByteStream> unpacked(const fs::path& path, Packing packing) {
  if (packing == Packing::kNone) return std::make_unique<FileStream>(path);
  return open_unpacked(path, packing_name(packing), 0, fs::file_size(path));
}

/// Drops the byte order mark of UTF-8, if any.
class UnmarkedStream : public ByteStream {
 public:
  explicit UnmarkedStream(std::unique_ptr<ByteStream> from) : from_(std::move(from)) {
    head_.resize(kUtf8Mark.size());
    head_.resize(read_all(*from_, head_.data(), head_.size()));
    if (head_ == kUtf8Mark) head_.clear();
  }
  size_t read(char* to, size_t bytes) override {
    if (at_ == head_.size()) return from_->read(to, bytes);
    const size_t part = std::min(bytes, head_.size() - at_);
    std::memcpy(to, head_.data() + at_, part);
    at_ += part;
    return part;
  }

 private:
  std::unique_ptr<ByteStream> from_;
  std::string head_;
  size_t at_ = 0;
};

class Utf16Stream : public ByteStream {
 public:
  Utf16Stream(std::unique_ptr<ByteStream> from, Encoding encoding, std::string place)
      : from_(std::move(from)),
        big_(encoding == Encoding::kUtf16Big),
        place_(std::move(place)),
        units_(kPieceBytes, 0) {
    read_all(*from_, units_.data(), 2);  // byte order mark
  }
  size_t read(char* to, size_t bytes) override {
    while (at_ == text_.size() && fill()) continue;
    const size_t part = std::min(bytes, text_.size() - at_);
    std::memcpy(to, text_.data() + at_, part);
    at_ += part;
    return part;
  }

 private:
  /// Converts the next piece to UTF-8. Returns false at the end.
  bool fill() {
    const size_t size = read_all(*from_, units_.data(), units_.size());
    text_.clear();
    at_ = 0;
    if (size % 2 != 0) refuse("ends within a character");
    for (size_t i = 0; i < size; i += 2) {
      const auto byte = [&](size_t offset) {
        return static_cast<unsigned char>(units_[i + offset]);
      };
      const int32_t unit = big_ ? byte(0) << 8 | byte(1) : byte(1) << 8 | byte(0);
      const bool low = unit >= 0xDC00 && unit < 0xE000;
      if (low != (high_ != 0)) refuse("has half a surrogate pair");
      if (low) {
        append_utf8(text_, 0x10000 + ((high_ - 0xD800) << 10) + (unit - 0xDC00));
        high_ = 0;
      } else if (unit >= 0xD800 && unit < 0xDC00) {
        high_ = unit;
      } else {
        append_utf8(text_, unit);
      }
    }
    if (size == 0 && high_ != 0) refuse("has half a surrogate pair");
    return size > 0;
  }

  [[noreturn]] void refuse(const char* reason) const {
    throw UserError(fmt::format("the text in UTF-16 {}", reason), "save it as UTF-8", place_);
  }

  std::unique_ptr<ByteStream> from_;
  bool big_;
  std::string place_, units_, text_;
  size_t at_ = 0;
  int32_t high_ = 0;  ///< first half of a surrogate pair
};

/// File without a name, which disappears when its descriptor is closed.
class UnnamedFile {
 public:
  UnnamedFile() {
    const char* const given = std::getenv("TMPDIR");
    folder_ = given != nullptr && *given != '\0' ? given : "/var/tmp";
    std::string name = folder_ + "/dovetail-XXXXXX";
    fd_ = ::mkostemp(name.data(), O_CLOEXEC);
    if (fd_ < 0) refuse();
    ::unlink(name.c_str());
  }
  ~UnnamedFile() { ::close(fd_); }
  UnnamedFile(const UnnamedFile&) = delete;
  UnnamedFile& operator=(const UnnamedFile&) = delete;

  void write(std::string_view bytes) const {
    while (!bytes.empty()) {
      const ssize_t written = ::write(fd_, bytes.data(), bytes.size());
      if (written < 0 && errno != EINTR) refuse();
      if (written > 0) bytes.remove_prefix(static_cast<size_t>(written));
    }
  }
  MappedFile map() const { return MappedFile(fmt::format("/proc/self/fd/{}", fd_)); }

 private:
  [[noreturn]] void refuse() const {
    throw UserError(fmt::format("cannot write the unpacked bytes: {}", std::strerror(errno)),
                    "TMPDIR names the folder for them", folder_);
  }
  std::string folder_;
  int fd_ = -1;
};

/// Returns true if lines of a text end in carriage returns only.
bool has_lone_returns(const InputHead& head, std::string_view bytes) {
  return head.kind == InputKind::kText && bytes.find('\r') != std::string_view::npos &&
         bytes.find('\n') == std::string_view::npos;
}

std::string lower_extension(const fs::path& path) {
  std::string extension = path.extension().string();
  for (char& c : extension)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return extension;
}

}  // namespace

MappedFile map_stream(ByteStream& stream) {
  const UnnamedFile unnamed;
  std::string piece(kPieceBytes, '\0');
  while (const size_t size = read_all(stream, piece.data(), piece.size()))
    unnamed.write({piece.data(), size});
  return unnamed.map();
}

std::string input_extension(const fs::path& path) {
  const std::string extension = lower_extension(path);
  for (const char* packed : {".gz", ".gzip", ".zst", ".zstd", ".bz2"})
    if (extension == packed) return lower_extension(path.stem());
  return extension;
}

InputHead look_at_input(const fs::path& path) {
  InputHead head{.extension = input_extension(path)};
  FileStream file(path);
  std::string bytes = read_head(file);
  head.packing = packing_of(bytes);
  if (head.packing != Packing::kNone) bytes = read_head(*unpacked(path, head.packing));
  set_kind(bytes, head);
  if (head.packing != Packing::kNone)
    head.name = fmt::format("{} (compressed by {})", head.name, packing_name(head.packing));
  return head;
}

void require_text(const InputHead& head, const fs::path& path, std::string_view wanted) {
  if (head.kind == InputKind::kText) return;
  throw UserError(fmt::format("this is {}, not {}", head.name, wanted), head.remedy, path.string());
}

std::unique_ptr<ByteStream> open_input_stream(const fs::path& path, const InputHead& head) {
  auto bytes = unpacked(path, head.packing);
  if (head.kind != InputKind::kText) return bytes;
  if (head.encoding == Encoding::kUtf8) return std::make_unique<UnmarkedStream>(std::move(bytes));
  return std::make_unique<Utf16Stream>(std::move(bytes), head.encoding, path.string());
}

MappedInput::MappedInput(const fs::path& path) : MappedInput(path, look_at_input(path)) {}

MappedInput::MappedInput(const fs::path& path, InputHead head) : head_(std::move(head)) {
  const auto view = [](const MappedFile& file) {
    return std::string_view(reinterpret_cast<const char*>(file.bytes().data()),
                            file.bytes().size());
  };
  std::string piece(kHeadBytes, '\0');
  const auto stream = open_input_stream(path, head_);
  piece.resize(read_all(*stream, piece.data(), piece.size()));
  bool returns = has_lone_returns(head_, piece);
  if (returns && head_.is_plain()) {
    file_ = MappedFile(path);
    returns = has_lone_returns(head_, view(file_));
  }
  if (head_.is_plain() && !returns) {
    file_ = MappedFile(path);
    bytes_ = view(file_);
    if (head_.kind == InputKind::kText && bytes_.starts_with(kUtf8Mark))
      bytes_.remove_prefix(kUtf8Mark.size());
    return;
  }
  const UnnamedFile unnamed;
  while (!piece.empty()) {
    if (returns) std::replace(piece.begin(), piece.end(), '\r', '\n');
    unnamed.write(piece);
    piece.resize(kPieceBytes);
    piece.resize(read_all(*stream, piece.data(), piece.size()));
  }
  file_ = unnamed.map();
  bytes_ = view(file_);
}

}  // namespace dovetail::data
