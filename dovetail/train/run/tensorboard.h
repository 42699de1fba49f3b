#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>
#include <utility>
#include <vector>

namespace dovetail::train {

/// Writer of scalars (named numbers per step) to an event file of TensorBoard. The file has
/// TFRecord framing around protobuf `Event` messages. A record has length and data, each with a
/// masked CRC-32C. Messages follow tensorflow/core/util/event.proto, version "brain.Event:2".
///
/// Each process writes its own file. The file begins with a session start at `first_step`.
/// TensorBoard then drops values of this step and later ones from earlier processes of the run.
class EventWriter {
 public:
  /// Makes an event file in `folder`, which is created if necessary. Throws UserError if the file
  /// cannot be written.
  EventWriter(const std::filesystem::path& folder, int64_t first_step);
  ~EventWriter();
  EventWriter(const EventWriter&) = delete;
  EventWriter& operator=(const EventWriter&) = delete;

  /// Writes `values`, pairs of name and number, as one event of `step`. They are written
  /// immediately.
  void scalars(int64_t step, const std::vector<std::pair<std::string_view, double>>& values);

 private:
  void write_event(int64_t step, std::string_view what);
  std::filesystem::path path_;
  int fd_ = -1;
};

/// Returns the checksum CRC-32C (Castagnoli) of `data`, as in RFC 3720 B.4.
uint32_t crc32c(std::string_view data);

}  // namespace dovetail::train
