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

/// Reads the whole file. Throws UserError with the system's reason if the file cannot be read.
std::string read_file(const std::filesystem::path& path);

/// Writes a file that appears under its final name only when it is complete. Data goes to a
/// temporary file in the same folder, named `.<name>.<pid>-<n>.partial`. `commit` syncs it, renames
/// it to the final name and syncs the folder. Without `commit`, the destructor removes the
/// temporary file. Writes are unbuffered system calls, so pass more than a few bytes at a time.
/// Throws UserError on each failed write, for example on a full disk or a missing permission. A
/// file that already has the final name stays unchanged until `commit`.
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

/// Writes `content` to the file `path` as an AtomicFile does.
void write_file_atomically(const std::filesystem::path& path, std::string_view content);

/// Removes files and folders named `.*.partial` that killed processes left directly in `folder`.
/// Returns the number removed; 0 if `folder` does not exist. Call it only while no process writes
/// to the folder.
int remove_leftovers(const std::filesystem::path& folder);

/// Calls fsync on a folder, so that a rename inside it survives a power cut.
void sync_folder(const std::filesystem::path& folder);

/// Read-only memory-mapped file. Throws UserError if the path cannot be opened and mapped, or is
/// not a regular file. For an empty file, `bytes()` is empty.
class MappedFile {
 public:
  MappedFile() = default;
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  /// Removes the pages that lie inside bytes [begin, end) of the file from this process's memory. A
  /// later access reads them from the file again.
  void release(size_t begin, size_t end) const;

 private:
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

/// Incremental SHA-256 (FIPS 180-4). The digest is in lower-case hex.
class Sha256 {
 public:
  Sha256();
  void update(const void* data, size_t bytes);
  void update(std::string_view text) { update(text.data(), text.size()); }
  /// Returns the digest of all data since the start. The next `update` starts a new digest.
  std::string hex_digest();

 private:
  uint32_t state_[8];
  uint8_t block_[64];
  uint64_t length_ = 0;
};

/// Returns the SHA-256 of `text` in lower-case hex.
std::string sha256_of(std::string_view text);
/// Returns the SHA-256 of a file's content in lower-case hex. Throws UserError if it cannot be
/// read.
std::string sha256_of_file(const std::filesystem::path& path);

}  // namespace dovetail
