#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "dovetail/base/error.h"
#include "dovetail/data/files/parquet.h"
#include "dovetail/data/matrix/matrix_part.h"

// Reads the directory of a zip archive: PKWARE's APPNOTE.TXT 6.3, sections 4.3 and 4.5.3.
namespace dovetail::data {
namespace {

constexpr uint64_t kInExtra = 0xFFFFFFFF;

struct Member {
  std::string name;
  uint64_t method = 0, crc = 0, packed = 0, size = 0, header = 0;
};

[[noreturn]] void refuse_zip(const std::filesystem::path& path, const std::string& reason,
                             const std::string& help = "write it with numpy.savez") {
  throw UserError(reason, help, path.string());
}

/// Reads little-endian numbers and bytes of a file. Throws UserError past its end.
class Fields {
 public:
  Fields(std::string_view file, const std::filesystem::path& path) : file_(file), path_(path) {}

  uint64_t number(uint64_t at, size_t bytes) const {
    const std::string_view text = part(at, bytes);
    uint64_t value = 0;
    for (size_t i = 0; i < bytes; ++i) value |= uint64_t{static_cast<uint8_t>(text[i])} << (8 * i);
    return value;
  }
  std::string_view part(uint64_t at, uint64_t bytes) const {
    if (at > file_.size() || bytes > file_.size() - at)
      refuse_zip(path_, "the archive ends early or is damaged");
    return file_.substr(at, bytes);
  }

 private:
  std::string_view file_;
  const std::filesystem::path& path_;
};

/// Reads sizes and offsets of 4 GiB and more, which are in an extra field, in this order.
void read_extra(const Fields& fields, uint64_t at, uint64_t end, Member& member) {
  while (at + 4 <= end) {
    const uint64_t id = fields.number(at, 2), size = fields.number(at + 2, 2);
    uint64_t value = at + 4;
    at = value + size;
    if (id != 1) continue;
    for (uint64_t* wanted : {&member.size, &member.packed, &member.header}) {
      if (*wanted != kInExtra) continue;
      *wanted = fields.number(value, 8);
      value += 8;
    }
  }
}

std::vector<Member> members_of(std::string_view file, const std::filesystem::path& path) {
  const Fields fields(file, path);
  const size_t end = file.rfind("PK\x05\x06");
  if (end == std::string_view::npos)
    refuse_zip(path, "the archive has no directory: it ends early");
  uint64_t count = fields.number(end + 10, 2), at = fields.number(end + 16, 4);
  if (at == kInExtra && end >= 20) {
    const uint64_t large = fields.number(end - 12, 8);  // in the locator before the end record
    count = fields.number(large + 32, 8);
    at = fields.number(large + 48, 8);
  }
  std::vector<Member> members;
  for (uint64_t i = 0; i < count; ++i) {
    if (fields.part(at, 4) != "PK\x01\x02") refuse_zip(path, "the archive's directory is damaged");
    const uint64_t name = fields.number(at + 28, 2), extra = fields.number(at + 30, 2);
    Member member{.name = std::string(fields.part(at + 46, name)),
                  .method = fields.number(at + 10, 2),
                  .crc = fields.number(at + 16, 4),
                  .packed = fields.number(at + 20, 4),
                  .size = fields.number(at + 24, 4),
                  .header = fields.number(at + 42, 4)};
    read_extra(fields, at + 46 + name, at + 46 + name + extra, member);
    members.push_back(std::move(member));
    at += 46 + name + extra + fields.number(at + 32, 2);
  }
  return members;
}

/// Keeps only the arrays in `members`, with names without ".npy". Throws UserError for an archive
/// of other contents.
void keep_arrays(std::vector<Member>& members, const std::filesystem::path& path) {
  std::vector<std::string> others;
  std::erase_if(members, [&](const Member& member) {
    if (member.name.ends_with(".npy")) return false;
    others.push_back(printable(member.name));
    return true;
  });
  for (Member& member : members) member.name.resize(member.name.size() - 4);
  const auto has = [&](std::string_view end) {
    return std::ranges::any_of(others,
                               [&](const std::string& name) { return name.ends_with(end); });
  };
  if (has("xl/workbook.xml"))
    refuse_zip(path, "this is an Excel workbook, not a table of numbers",
               "write it as Parquet, for example by pandas.read_excel(file).to_parquet(other)");
  if (has("/data.pkl"))
    refuse_zip(path, "this is a file of torch.save",
               "write the tensor as an array: numpy.save(other, tensor.numpy())");
  if (members.empty() && !others.empty())
    refuse_zip(path,
               fmt::format("the archive holds no array of NumPy, only {}", fmt::join(others, ", ")),
               "unpack it first: unzip");
  if (std::ranges::find(members, "format", &Member::name) != members.end() &&
      std::ranges::find(members, "shape", &Member::name) != members.end())
    refuse_zip(path, "this is a sparse matrix of SciPy",
               "write it as an array: numpy.save(other, scipy.sparse.load_npz(file).toarray())");
}

}  // namespace

MappedFile map_zip_member(const std::filesystem::path& path, const std::string& name,
                          std::string_view& bytes) {
  const auto view = [](const MappedFile& file) {
    return std::string_view(reinterpret_cast<const char*>(file.bytes().data()),
                            file.bytes().size());
  };
  MappedFile archive(path);
  std::vector<Member> members = members_of(view(archive), path);
  keep_arrays(members, path);
  std::vector<std::string> names;
  for (const Member& member : members) names.push_back(printable(member.name));
  auto found = std::ranges::find(members, name, &Member::name);
  if (name.empty() && members.size() == 1) found = members.begin();
  if (found == members.end())
    throw UserError(
        name.empty() ? fmt::format("the archive holds {} arrays, not one", members.size())
                     : fmt::format("the archive holds no array named {}", printable(name)),
        names.empty() ? std::string("write it with numpy.savez")
                      : fmt::format("name one after a colon, such as {}:{}; there are {}",
                                    path.filename().string(), names[0], fmt::join(names, ", ")),
        path.string());
  const Fields fields(view(archive), path);
  if (fields.part(found->header, 4) != "PK\x03\x04")
    refuse_zip(path, "the archive's directory is damaged");
  const uint64_t begin = found->header + 30 + fields.number(found->header + 26, 2) +
                         fields.number(found->header + 28, 2);
  constexpr uint64_t kStored = 0, kDeflated = 8;
  if (found->method != kStored && found->method != kDeflated)
    refuse_zip(path,
               fmt::format("the archive is packed by method {} of zip, not stored or deflated",
                           found->method));
  bytes = fields.part(begin, found->packed);
  if (found->method == kDeflated) {
    archive = map_stream(*open_unpacked(path, "deflate", begin, found->packed));
    bytes = view(archive);
  }
  if (bytes.size() != found->size || crc32_of(bytes) != found->crc)
    refuse_zip(
        path,
        fmt::format(
            "the array {} does not have the size and checksum that the archive's directory says",
            printable(found->name)));
  return archive;
}

}  // namespace dovetail::data
