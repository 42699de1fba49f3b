#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace dovetail {

/// The whole file. Throws UserError (with the reason of the system) when it cannot be read.
std::string read_file(const std::filesystem::path& path);

/// A file written beside its final name, synced, renamed over it, and its folder synced. Until
/// `commit` returns, nothing exists under the final name; without `commit` the temporary is removed
/// by the destructor. Temporaries are named
/// `.<name>.<pid>-<n>.partial`. Writes go straight to the system: give it more than a few bytes at
/// a time. Throws UserError on every failed write (a full disk, no permission), leaving what was
/// there.
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(const void* data, size_t bytes);
  void write(std::string_view text) { write(text.data(), text.size()); }
  uint64_t bytes_written() const { return bytes_; }
  void commit();

 private:
  std::filesystem::path path_, temporary_;
  int fd_ = -1;
  uint64_t bytes_ = 0;
};

void write_file_atomically(const std::filesystem::path& path, std::string_view content);

/// Remove what killed processes left: `.*.partial` files and folders directly in `folder` (none
/// when it does not exist). To be called while nobody writes there. Returns how many.
int remove_leftovers(const std::filesystem::path& folder);

/// fsync of a folder, so that a rename inside it survives a power cut.
void sync_folder(const std::filesystem::path& folder);

/// A read-only memory-mapped file. Throws UserError when it cannot be opened; an empty file maps to
/// an empty span.
class MappedFile {
 public:
  MappedFile() = default;
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  /// Pages that lie within bytes [begin, end) are no longer resident in this process; they are read
  /// again if needed.
  void release(size_t begin, size_t end) const;

 private:
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

/// SHA-256 (FIPS 180-4), incremental; hex digest in lower case.
class Sha256 {
 public:
  Sha256();
  void update(const void* data, size_t bytes);
  void update(std::string_view text) { update(text.data(), text.size()); }
  std::string hex_digest();  ///< of everything so far; the next update starts a new digest

 private:
  uint32_t state_[8];
  uint8_t block_[64];
  uint64_t length_ = 0;
};

std::string sha256_of(std::string_view text);
std::string sha256_of_file(const std::filesystem::path& path);

}  // namespace dovetail
