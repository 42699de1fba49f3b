#include "dovetail/train/run/tensorboard.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <string>

#include "dovetail/base/error.h"

namespace dovetail::train {
namespace {

constexpr std::array<uint32_t, 256> crc32c_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) != 0 ? 0x82f63b78u : 0u);
    table[i] = value;
  }
  return table;
}

/// TFRecord rotates and offsets checksums, so that the checksum of data that contains a checksum
/// remains meaningful.
uint32_t masked_crc(std::string_view data) { return std::rotr(crc32c(data), 15) + 0xa282ead8u; }

/// Appends the little-endian bytes of a fixed-width value, as protobuf and TFRecord require.
template <class T>
void append_fixed(std::string& out, T value) {
  static_assert(std::endian::native == std::endian::little);
  char bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof(T));
  out.append(bytes, sizeof(T));
}

// Protobuf's wire format: a key (field number and wire type), then the value. Wire types: 0 varint,
// 1 eight bytes, 2 length and bytes, 5 four bytes.
void append_varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>(value | 0x80));
  out.push_back(static_cast<char>(value));
}
void append_key(std::string& out, uint32_t field, uint32_t wire_type) {
  append_varint(out, field << 3 | wire_type);
}
void append_integer(std::string& out, uint32_t field, int64_t value) {
  append_key(out, field, 0);
  append_varint(out, static_cast<uint64_t>(value));
}
void append_double(std::string& out, uint32_t field, double value) {
  append_key(out, field, 1);
  append_fixed(out, value);
}
void append_bytes(std::string& out, uint32_t field, std::string_view value) {
  append_key(out, field, 2);
  append_varint(out, value.size());
  out.append(value);
}
void append_float(std::string& out, uint32_t field, float value) {
  append_key(out, field, 5);
  append_fixed(out, value);
}

// Field numbers of event.proto and summary.proto.
constexpr uint32_t kEventWallTime = 1, kEventStep = 2, kEventFileVersion = 3, kEventSummary = 5,
                   kEventSessionLog = 7;
constexpr uint32_t kSummaryValue = 1, kValueTag = 1, kValueSimple = 2;
constexpr uint32_t kSessionStatus = 1, kSessionStart = 1;

std::string event_file_name() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  char host[256] = "localhost";
  ::gethostname(host, sizeof(host) - 1);
  return fmt::format("events.out.tfevents.{:010d}.{}.{}.{}",
                     std::chrono::duration_cast<std::chrono::seconds>(now).count(), host,
                     ::getpid(),
                     std::chrono::duration_cast<std::chrono::microseconds>(now).count() % 1000000);
}

}  // namespace

uint32_t crc32c(std::string_view data) {
  static constexpr std::array<uint32_t, 256> kTable = crc32c_table();
  uint32_t crc = ~0u;
  for (const char c : data) crc = (crc >> 8) ^ kTable[(crc ^ static_cast<uint8_t>(c)) & 0xff];
  return ~crc;
}

EventWriter::EventWriter(const std::filesystem::path& folder, int64_t first_step) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  path_ = folder / event_file_name();
  fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0644);
  user_check(fd_ >= 0, "cannot create {}: {}", path_.string(), std::strerror(errno));
  std::string version, session, start;
  append_bytes(version, kEventFileVersion, "brain.Event:2");
  write_event(0, version);
  append_integer(start, kSessionStatus, kSessionStart);
  append_bytes(session, kEventSessionLog, start);
  write_event(first_step, session);
}

EventWriter::~EventWriter() { ::close(fd_); }

void EventWriter::scalars(int64_t step,
                          const std::vector<std::pair<std::string_view, double>>& values) {
  std::string summary;
  for (const auto& [tag, number] : values) {
    std::string value;
    append_bytes(value, kValueTag, tag);
    append_float(value, kValueSimple, static_cast<float>(number));
    append_bytes(summary, kSummaryValue, value);
  }
  std::string what;
  append_bytes(what, kEventSummary, summary);
  write_event(step, what);
}

void EventWriter::write_event(int64_t step, std::string_view what) {
  std::string event;
  const auto now =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch());
  append_double(event, kEventWallTime, now.count());
  append_integer(event, kEventStep, step);
  event.append(what);

  std::string record;
  append_fixed(record, static_cast<uint64_t>(event.size()));
  append_fixed(record, masked_crc(record));
  record.append(event);
  append_fixed(record, masked_crc(event));
  const ssize_t written = ::write(fd_, record.data(), record.size());
  user_check(written == static_cast<ssize_t>(record.size()), "cannot write {}: {}", path_.string(),
             written < 0 ? std::strerror(errno) : "no space left");
}

}  // namespace dovetail::train
