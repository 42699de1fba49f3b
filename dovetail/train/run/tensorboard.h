#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>
#include <utility>
#include <vector>

namespace dovetail::train {

/// Writer of scalars for TensorBoard, to an event file. The file has TFRecord framing around
/// protobuf `Event` messages. A record has length and data, each with a masked CRC-32C. Messages
/// follow tensorflow/core/util/event.proto, version "brain.Event:2".
///
/// Each process writes its own file. The file begins with a session start at `first_step`.
/// TensorBoard then drops values of this and later steps that an earlier process of the run wrote.
class EventWriter {
 public:
  /// Creates `folder` if necessary. Throws UserError if the file cannot be written.
  EventWriter(const std::filesystem::path& folder, int64_t first_step);
  ~EventWriter();
  EventWriter(const EventWriter&) = delete;
  EventWriter& operator=(const EventWriter&) = delete;

  /// Writes all values of a step immediately, as one event.
  void scalars(int64_t step, const std::vector<std::pair<std::string_view, double>>& values);

 private:
  void write_event(int64_t step, std::string_view what);
  std::filesystem::path path_;
  int fd_ = -1;
};

/// Returns the CRC-32C (Castagnoli), as in RFC 3720 B.4.
uint32_t crc32c(std::string_view data);

}  // namespace dovetail::train
