#include "dovetail/base/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "dovetail/base/error.h"

namespace dovetail {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void throw_errno(std::string_view what, const fs::path& path, int error) {
  std::string help;
  if (error == ENOSPC || error == EDQUOT)
    help = "free space on that file system, or choose another place";
  if (error == EACCES || error == EPERM || error == EROFS)
    help = "check who owns the folder and may write to it";
  if (error == ENOENT) help = "check the path for a typing mistake; the folder must exist";
  throw UserError(fmt::format("cannot {} '{}': {}", what, path.string(),
                              std::generic_category().message(error)),
                  help);
}

/// File descriptor that the destructor closes.
class Descriptor {
 public:
  Descriptor(const fs::path& path, int flags) {
    do fd_ = ::open(path.c_str(), flags | O_CLOEXEC);
    while (fd_ < 0 && errno == EINTR);
    if (fd_ < 0) throw_errno("open", path, errno);
  }
  ~Descriptor() { ::close(fd_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_ = -1;
};

// Returns the number of bytes read; 0 at the end of the file.
size_t read_some(int fd, void* data, size_t bytes, const fs::path& path) {
  ssize_t n = 0;
  do n = ::read(fd, data, bytes);
  while (n < 0 && errno == EINTR);
  if (n < 0) throw_errno("read", path, errno);
  return static_cast<size_t>(n);
}

fs::path folder_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

}  // namespace

std::string read_file(const fs::path& path) {
  const Descriptor file(path, O_RDONLY);
  struct stat status{};
  if (::fstat(file.get(), &status) != 0) throw_errno("read", path, errno);
  // The size is only a hint. Pipes and files in /proc report 0.
  std::string content(status.st_size > 0 ? static_cast<size_t>(status.st_size) + 1 : 4096, '\0');
  size_t size = 0;
  while (const size_t n =
             read_some(file.get(), content.data() + size, content.size() - size, path)) {
    size += n;
    if (size == content.size()) content.resize(2 * size);
  }
  content.resize(size);
  return content;
}

AtomicFile::AtomicFile(fs::path path) : path_(std::move(path)) {
  static std::atomic<int> count{0};
  // The name may exist: a killed process with the same id may have left its file. Try the next
  // number.
  do {
    temporary_ = folder_of(path_) / fmt::format(".{}.{}-{}.partial", path_.filename().string(),
                                                ::getpid(), count.fetch_add(1));
    fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  } while (fd_ < 0 && (errno == EINTR || errno == EEXIST));
  if (fd_ < 0) throw_errno("create", path_, errno);
}

AtomicFile::~AtomicFile() {
  if (fd_ >= 0) ::close(fd_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void AtomicFile::write(const void* data, size_t bytes) {
  DOVETAIL_CHECK(fd_ >= 0, "'{}' is written to after commit", path_.string());
  const char* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t n = ::write(fd_, at, bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw_errno("write", path_, errno);
    at += n;
    bytes -= static_cast<size_t>(n);
    bytes_ += static_cast<uint64_t>(n);
  }
}

void AtomicFile::commit() {
  DOVETAIL_CHECK(fd_ >= 0, "'{}' is committed twice", path_.string());
  int failed = 0;
  do failed = ::fsync(fd_);
  while (failed != 0 && errno == EINTR);
  if (failed != 0) throw_errno("write", path_, errno);
  // No retry on EINTR: Linux has closed the descriptor even then. Network file systems report a
  // full disk in close.
  if (::close(std::exchange(fd_, -1)) != 0 && errno != EINTR) throw_errno("write", path_, errno);
  if (::rename(temporary_.c_str(), path_.c_str()) != 0)
    throw_errno("rename a finished file to", path_, errno);
  temporary_.clear();
  sync_folder(folder_of(path_));
}

void write_file_atomically(const fs::path& path, std::string_view content) {
  AtomicFile file(path);
  file.write(content);
  file.commit();
}

int remove_leftovers(const fs::path& folder) {
  std::error_code error;
  std::vector<fs::path> found;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (name.starts_with('.') && name.ends_with(".partial")) found.push_back(it->path());
  }
  if (error && error != std::errc::no_such_file_or_directory)
    throw_errno("read", folder, error.value());
  int removed = 0;
  for (const fs::path& path : found) {
    const bool existed = fs::remove_all(path, error) > 0;
    if (error) throw_errno("remove", path, error.value());
    removed += existed ? 1 : 0;  // another process may have removed it first
  }
  return removed;
}

void sync_folder(const fs::path& folder) {
  const Descriptor directory(folder, O_RDONLY | O_DIRECTORY);
  int failed = 0;
  do failed = ::fsync(directory.get());
  while (failed != 0 && errno == EINTR);
  // EINVAL: the file system does not support fsync on folders. It decides itself when renames are
  // durable.
  if (failed != 0 && errno != EINVAL) throw_errno("write", folder, errno);
}

MappedFile::MappedFile(const fs::path& path) {
  const Descriptor file(path, O_RDONLY);
  struct stat status{};
  if (::fstat(file.get(), &status) != 0) throw_errno("read", path, errno);
  if (!S_ISREG(status.st_mode))
    throw UserError(fmt::format("cannot map '{}': it is not a regular file", path.string()));
  size_ = static_cast<size_t>(status.st_size);
  if (size_ == 0) return;
  void* const data = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, file.get(), 0);
  if (data == MAP_FAILED) throw_errno("map", path, errno);
  data_ = static_cast<const std::byte*>(data);
}

MappedFile::~MappedFile() {
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-const-cast): munmap takes void*
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

void MappedFile::release(size_t begin, size_t end) const {
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const size_t first = (begin + page - 1) / page * page,
               last = end == size_ ? end : end / page * page;
  // madvise is only advice. Pages that stay resident cost memory, not correctness.
  if (first < last) ::madvise(const_cast<std::byte*>(data_) + first, last - first, MADV_DONTNEED);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

}  // namespace dovetail
