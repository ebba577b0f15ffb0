// CRC-32C (Castagnoli, reflected, polynomial 0x1EDC6F41), as iSCSI and ext4 use it: what guards a payload.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace thinwire {

// Of the bytes "123456789" it is 0xE3069283. With the processor's instruction where there is one.
uint32_t crc32c(std::span<const std::byte> bytes);
// The same by table: what every other machine computes, and the test's oracle.
uint32_t crc32c_table(std::span<const std::byte> bytes);

}  // namespace thinwire
