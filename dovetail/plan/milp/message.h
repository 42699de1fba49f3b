#pragma once

#include <cstdint>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

/// Messages between solve_milp (plan/solve/milp.h) and its child process, which runs the solver.
/// They go over a socket. Each message is a CBOR map, preceded by its length in 8 bytes.
///
/// The parent sends one message with the integer program and its options. The child reports
/// progress as {"bound", "nodes"}: the proven lower bound and the number of search nodes. It adds
/// "values" if it has found a better solution. Its last message has a "status": "optimal", "limit",
/// "infeasible", "unbounded" or "error". A message with status "error" also has a "message": the
/// text of the error.
///
/// Arrays are byte strings: their elements in native memory order. The child's only argument is the
/// parent's process id. This file is header only, since the child does not link our libraries.
namespace dovetail::plan::milp {

/// File descriptor of the socket in the child.
constexpr int kChildSocket = 3;

template <class T>
/// Converts an array to a byte string.
nlohmann::json pack(const std::vector<T>& values) {
  std::vector<uint8_t> bytes(values.size() * sizeof(T));
  if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return nlohmann::json::binary(std::move(bytes));
}

template <class T>
/// Converts a byte string back to an array.
std::vector<T> unpack(const nlohmann::json& packed) {
  const std::vector<uint8_t>& bytes = packed.get_binary();
  std::vector<T> values(bytes.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
  return values;
}

/// Returns a message as it is sent, with its length in front.
inline std::vector<uint8_t> to_bytes(const nlohmann::json& message) {
  std::vector<uint8_t> bytes(sizeof(uint64_t));
  nlohmann::json::to_cbor(message, bytes);
  const uint64_t length = bytes.size() - sizeof(uint64_t);
  std::memcpy(bytes.data(), &length, sizeof length);
  return bytes;
}

/// Removes the first message from the received bytes and returns it. Returns nullopt if they do not
/// contain a whole message.
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
