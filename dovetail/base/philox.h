#pragma once

#include <stdint.h>

#include "dovetail/base/host_device.h"

namespace dovetail {

/// Four random words from one call of the generator.
struct PhiloxWords {
  uint32_t word[4];
};

/// Random number generator Philox4x32-10 (Salmon et al., SC 2011), for CPU and GPU. The words are a
/// pure function of the key and of the 128-bit counter. `philox` in rng.h returns the same words.
DOVETAIL_HOST_DEVICE constexpr PhiloxWords philox_words(uint64_t key, uint64_t counter_low,
                                                        uint64_t counter_high) {
  constexpr uint64_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57;
  constexpr uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;
  auto key0 = static_cast<uint32_t>(key), key1 = static_cast<uint32_t>(key >> 32);
  PhiloxWords x = {{static_cast<uint32_t>(counter_low), static_cast<uint32_t>(counter_low >> 32),
                    static_cast<uint32_t>(counter_high),
                    static_cast<uint32_t>(counter_high >> 32)}};
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = kMultiplier0 * x.word[0], product1 = kMultiplier1 * x.word[2];
    x = {{static_cast<uint32_t>(product1 >> 32) ^ x.word[1] ^ key0, static_cast<uint32_t>(product1),
          static_cast<uint32_t>(product0 >> 32) ^ x.word[3] ^ key1,
          static_cast<uint32_t>(product0)}};
    key0 += kWeyl0;
    key1 += kWeyl1;
  }
  return x;
}

}  // namespace dovetail
