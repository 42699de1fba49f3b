#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>
#include <utility>
#include <vector>

namespace dovetail {

/// Scalars for TensorBoard: an event file, which is TFRecord framing (length and data, each with a
/// masked CRC-32C) around protobuf `Event` messages (tensorflow/core/util/event.proto, version
/// "brain.Event:2").
///
/// Each process writes a file of its own. It begins with a session start at `first_step`, on which
/// TensorBoard drops what an earlier process of the run wrote at that step or later.
class EventWriter {
 public:
  /// Makes `folder` if need be. Throws UserError if the file cannot be written.
  EventWriter(const std::filesystem::path& folder, int64_t first_step);
  ~EventWriter();
  EventWriter(const EventWriter&) = delete;
  EventWriter& operator=(const EventWriter&) = delete;

  /// All values of a step in one event, written at once.
  void scalars(int64_t step, const std::vector<std::pair<std::string_view, double>>& values);

 private:
  void write_event(int64_t step, std::string_view what);
  std::filesystem::path path_;
  int fd_ = -1;
};

/// CRC-32C (Castagnoli), as RFC 3720 B.4.
uint32_t crc32c(std::string_view data);

}  // namespace dovetail
