#pragma once

#include <cstdint>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

/// What solve_milp and its child say to one another over a socket, each message a CBOR map after
/// its length in 8 bytes: first the program with its options to the child, then from the child
/// {"bound", "nodes", "values" where there is a better solution} as often as it has news, the last
/// of them with a "status" of "optimal", "limit", "infeasible", "unbounded" or "error", the last
/// one with a "message". Arrays are bytes as they lie in memory. The child gets the parent's
/// process number as its one argument. Header only, for the child links none of our libraries.
namespace dovetail::plan::milp {

constexpr int kChildSocket = 3;  ///< the child's file number of the socket

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

/// The first message of `received`, which it is taken from; none if it is not all there.
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
