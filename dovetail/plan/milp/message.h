#pragma once

#include <cstdint>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

/// Messages between solve_milp and its child process, over a socket. Each message is a CBOR map,
/// preceded by its length in 8 bytes. The parent sends one message with the program and its
/// options. The child sends {"bound", "nodes"} whenever it has news, with "values" for a better
/// solution. Its last message has a "status": "optimal", "limit", "infeasible", "unbounded" or
/// "error". A message with status "error" has a "message". Arrays are bytes in native memory order.
/// The child's only argument is the parent's process id. Header only, since the child does not link
/// our libraries.
namespace dovetail::plan::milp {

constexpr int kChildSocket = 3;  ///< file descriptor of the socket in the child

template <class T>
nlohmann::json pack(const std::vector<T>& values) {
  std::vector<uint8_t> bytes(values.size() * sizeof(T));
  if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return nlohmann::json::binary(std::move(bytes));
}

template <class T>
std::vector<T> unpack(const nlohmann::json& packed) {
  const std::vector<uint8_t>& bytes = packed.get_binary();
  std::vector<T> values(bytes.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
  return values;
}

inline std::vector<uint8_t> to_bytes(const nlohmann::json& message) {
  std::vector<uint8_t> bytes(sizeof(uint64_t));
  nlohmann::json::to_cbor(message, bytes);
  const uint64_t length = bytes.size() - sizeof(uint64_t);
  std::memcpy(bytes.data(), &length, sizeof length);
  return bytes;
}

/// Removes the first message from `received` and returns it. Returns nullopt if the message is
/// incomplete.
inline std::optional<nlohmann::json> take_message(std::vector<uint8_t>& received) {
  uint64_t length = 0;
  if (received.size() < sizeof length) return std::nullopt;
  std::memcpy(&length, received.data(), sizeof length);
  if (received.size() - sizeof length < length) return std::nullopt;
  const auto begin = received.begin() + sizeof length;
  const auto end = begin + static_cast<int64_t>(length);
  nlohmann::json message = nlohmann::json::from_cbor(begin, end);
  received.erase(received.begin(), end);
  return message;
}

}  // namespace dovetail::plan::milp
