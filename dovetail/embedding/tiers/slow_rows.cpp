#include "dovetail/embedding/tiers/slow_rows.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>

#include "dovetail/base/error.h"

namespace dovetail::embedding {

namespace {

/// Maximum bytes of one read or write of consecutive rows, unless one record is larger.
constexpr int64_t kChunkBytes = int64_t{1} << 20;

/// Creates a file without a name in the folder.
int open_unnamed(const std::filesystem::path& folder, const std::string& table) {
  std::string path = (folder / ".rows.XXXXXX").string();
  const int fd = mkostemp(path.data(), O_CLOEXEC);
  user_check(fd >= 0, "embedding: no file can be made in {} for the rows of table \"{}\": {}",
             folder.string(), table, std::strerror(errno));
  unlink(path.c_str());
  // Tells the system that access is random, so that it does not read ahead.
  posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
  return fd;
}

/// memcpy that allows null pointers for 0 bytes: an optimizer without state has null pointers.
void copy_bytes(void* to, const void* from, size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

}  // namespace

SlowRows::SlowRows(const Options& options, const InitialRows& initial)
    : options_(options),
      initial_(initial),
      row_bytes_(row_bytes(options.dtype, options.dim)),
      record_bytes_(row_bytes_ + options.state_width * static_cast<int64_t>(sizeof(float))),
      written_(static_cast<size_t>((options.rows + 63) / 64)) {
  const int64_t bytes = options.rows * record_bytes_;
  if (options.folder.empty()) {
    void* memory = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    user_check(memory != MAP_FAILED,
               "embedding: there is no memory for {} bytes of table \"{}\": {}", bytes,
               options.table, std::strerror(errno));
    memory_ = static_cast<char*>(memory);
    return;
  }
  fd_ = open_unnamed(options.folder, options.table);
  user_check(ftruncate(fd_, bytes) == 0,
             "embedding: no file of {} bytes can be made in {} for table \"{}\": {}", bytes,
             options.folder.string(), options.table, std::strerror(errno));
}

SlowRows::~SlowRows() {
  if (fd_ >= 0) close(fd_);
  if (memory_ != nullptr) munmap(memory_, static_cast<size_t>(options_.rows * record_bytes_));
}

void SlowRows::advise(int64_t row) const {
  if (fd_ >= 0) posix_fadvise(fd_, row * record_bytes_, record_bytes_, POSIX_FADV_WILLNEED);
}

void SlowRows::read(int64_t row, void* stored, float* state) {
  if (!written(row)) {
    initialize(row, stored, state);
    ++initialized_;
    return;
  }
  ++rows_read_;
  const auto row_bytes = static_cast<size_t>(row_bytes_);
  const auto state_bytes = static_cast<size_t>(options_.state_width) * sizeof(float);
  if (memory_ != nullptr) {
    const char* record = memory_ + row * record_bytes_;
    std::memcpy(stored, record, row_bytes);
    copy_bytes(state, record + row_bytes, state_bytes);
    return;
  }
  const std::array<iovec, 2> parts = {iovec{stored, row_bytes}, iovec{state, state_bytes}};
  const ssize_t done = preadv(fd_, parts.data(), 2, row * record_bytes_);
  if (done != record_bytes_) fail("read", row, done < 0 ? errno : EIO);
}

void SlowRows::write(int64_t row, const void* stored, const float* state) {
  ++rows_written_;
  const auto row_bytes = static_cast<size_t>(row_bytes_);
  const auto state_bytes = static_cast<size_t>(options_.state_width) * sizeof(float);
  if (memory_ != nullptr) {
    char* record = memory_ + row * record_bytes_;
    std::memcpy(record, stored, row_bytes);
    copy_bytes(record + row_bytes, state, state_bytes);
  } else {
    const std::array<iovec, 2> parts = {iovec{const_cast<void*>(stored), row_bytes},
                                        iovec{const_cast<float*>(state), state_bytes}};
    const ssize_t done = pwritev(fd_, parts.data(), 2, row * record_bytes_);
    if (done != record_bytes_) fail("written", row, done < 0 ? errno : ENOSPC);
  }
  mark_written(row);
}

void SlowRows::initialize(int64_t row, void* stored, float* state) const {
  const uint64_t key = options_.key_of ? options_.key_of(row) : static_cast<uint64_t>(row);
  initial_.store(options_.dtype, key, stored);
  std::fill_n(state, options_.state_width, 0.0f);
}

void SlowRows::forget(int64_t row) {
  std::atomic_ref(written_[static_cast<size_t>(row / 64)]).fetch_and(~(uint64_t{1} << (row % 64)));
}

void SlowRows::mark_written(int64_t row) {
  std::atomic_ref(written_[static_cast<size_t>(row / 64)]).fetch_or(uint64_t{1} << (row % 64));
}

void SlowRows::read_range(int64_t begin, int64_t count, char* stored, float* state) const {
  const int64_t rows =
      std::clamp<int64_t>(kChunkBytes / record_bytes_, 1, std::max<int64_t>(1, count));
  const auto chunk =
      std::make_unique_for_overwrite<char[]>(static_cast<size_t>(rows * record_bytes_));
  const auto row_bytes = static_cast<size_t>(row_bytes_);
  for (int64_t first = begin; first < begin + count; first += rows) {
    const int64_t here = std::min(rows, begin + count - first);
    read_bytes(first, chunk.get(), here * record_bytes_);
    for (int64_t i = 0; i < here; ++i) {
      char* row = stored + (first - begin + i) * row_bytes_;
      std::memcpy(row, chunk.get() + i * record_bytes_, row_bytes);
      copy_bytes(state + (first - begin + i) * options_.state_width,
                 chunk.get() + i * record_bytes_ + row_bytes,
                 static_cast<size_t>(record_bytes_) - row_bytes);
      if (!written(first + i))
        initialize(first + i, row, state + (first - begin + i) * options_.state_width);
    }
  }
}

void SlowRows::write_range(int64_t begin, int64_t count, const char* stored, const float* state) {
  const int64_t rows =
      std::clamp<int64_t>(kChunkBytes / record_bytes_, 1, std::max<int64_t>(1, count));
  const auto chunk =
      std::make_unique_for_overwrite<char[]>(static_cast<size_t>(rows * record_bytes_));
  const auto row_bytes = static_cast<size_t>(row_bytes_);
  for (int64_t first = begin; first < begin + count; first += rows) {
    const int64_t here = std::min(rows, begin + count - first);
    for (int64_t i = 0; i < here; ++i, stored += row_bytes_, state += options_.state_width) {
      std::memcpy(chunk.get() + i * record_bytes_, stored, row_bytes);
      copy_bytes(chunk.get() + i * record_bytes_ + row_bytes, state,
                 static_cast<size_t>(record_bytes_) - row_bytes);
    }
    write_bytes(first, chunk.get(), here * record_bytes_);
    for (int64_t i = 0; i < here; ++i) mark_written(first + i);
    rows_written_ += here;
  }
}

/// Reads bytes of records. Bytes never written read as zeros: holes in the file, fresh pages in
/// RAM.
void SlowRows::read_bytes(int64_t row, char* to, int64_t bytes) const {
  if (memory_ != nullptr) {
    std::memcpy(to, memory_ + row * record_bytes_, static_cast<size_t>(bytes));
    return;
  }
  for (int64_t at = 0; at < bytes;) {
    const ssize_t done =
        pread(fd_, to + at, static_cast<size_t>(bytes - at), row * record_bytes_ + at);
    if (done <= 0) fail("read", row, done < 0 ? errno : EIO);
    at += done;
  }
}

void SlowRows::write_bytes(int64_t row, const char* from, int64_t bytes) const {
  if (memory_ != nullptr) {
    std::memcpy(memory_ + row * record_bytes_, from, static_cast<size_t>(bytes));
    return;
  }
  for (int64_t at = 0; at < bytes;) {
    const ssize_t done =
        pwrite(fd_, from + at, static_cast<size_t>(bytes - at), row * record_bytes_ + at);
    if (done <= 0) fail("written", row, done < 0 ? errno : ENOSPC);
    at += done;
  }
}

bool SlowRows::written(int64_t row) const {
  auto& word = const_cast<uint64_t&>(written_[static_cast<size_t>(row / 64)]);
  return (std::atomic_ref(word).load(std::memory_order_relaxed) >> (row % 64) & 1) != 0;
}

void SlowRows::fail(const char* what, int64_t row, int error) const {
  throw UserError(fmt::format("embedding: row {} of table \"{}\" cannot be {} in {}: {}", row,
                              options_.table, what, options_.folder.string(), std::strerror(error)),
                  "the tables are lost with it; look for room and errors of the disk, and resume "
                  "from a checkpoint");
}

}  // namespace dovetail::embedding
