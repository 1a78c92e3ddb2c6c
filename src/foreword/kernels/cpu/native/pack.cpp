#include "pack.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace foreword {
namespace {

constexpr size_t kPieceBytes = 64u << 20;

template <class Work>
void each_panel(const Linear& linear, Pool& pool, const Work& work) {
  std::atomic<int> next{0};
  const int panels = panels_of(linear);
  pool.run([&](int) {
    for (int panel; (panel = next.fetch_add(1)) < panels;) work(panel);
  });
}

// The vectors of one block: quads[j] is [16 outputs][4 k].
void pack_block(const uint8_t (*quads)[64], int count, int bits, uint8_t* to) {
  if (bits == 8) {
    std::memcpy(to, quads, static_cast<size_t>(count) * 64);
    return;
  }
  const int half = count / 2;
  for (int j = 0; j < half; ++j)
    for (int i = 0; i < 64; ++i)
      to[64 * j + i] =
          static_cast<uint8_t>((quads[j][i] & 15) | (quads[j + half][i] & 15) << 4);
  to += 64 * half;
  const int width = bits - 4, per_vector = width ? 8 / width : 1;
  for (int j = 0; width && j < count; ++j)
    for (int i = 0; i < 64; ++i)
      to[64 * (j / per_vector) + i] |=
          static_cast<uint8_t>((quads[j][i] >> 4) << (j % per_vector * width));
}

void copy_lanes(const uint8_t* from, size_t row_stride, int size, int first, int outputs,
                uint8_t* to) {
  for (int lane = 0; lane < kPanel && first + lane < outputs; ++lane)
    std::memcpy(to + lane * size, from + (first + lane) * row_stride, size);
}

}  // namespace

Store::~Store() {
  for (const Piece& piece : pieces_) {
#if defined(__linux__)
    munmap(piece.data, piece.size);
#else
    ::operator delete[](piece.data, std::align_val_t(4096));
#endif
  }
}

uint8_t* Store::take(size_t bytes) {
  bytes = (bytes + 63) / 64 * 64;
  if (pieces_.empty() || pieces_.back().used + bytes > pieces_.back().size) {
    const size_t size = std::max((bytes + 4095) / 4096 * 4096, kPieceBytes);
#if defined(__linux__)
    void* data = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) throw std::bad_alloc();
    madvise(data, size, MADV_HUGEPAGE);
#else
    void* data = ::operator new[](size, std::align_val_t(4096));
    std::memset(data, 0, size);
#endif
    pieces_.push_back({static_cast<uint8_t*>(data), size, 0});
  }
  Piece& piece = pieces_.back();
  uint8_t* found = piece.data + piece.used;
  piece.used += bytes;
  used_ += bytes;
  return found;
}

void plan_grouped(Linear& linear) {
  linear.block = std::min(linear.group, 64);
  const int blocks = linear.group / linear.block;
  const int quads = linear.block / 4, planes = linear.bits - 4;
  const int vectors = linear.bits == 8 ? quads
                                       : quads / 2 + (planes ? (quads * planes + 7) / 8 : 0);
  linear.group_bytes = static_cast<size_t>(blocks) * vectors * 64;
  size_t header = linear.two_level ? (linear.has_offset ? 64 : 32) : 0;
  header += static_cast<size_t>(linear.unit_groups) *
            scale_bytes(linear);
  if (linear.has_offset)
    header += static_cast<size_t>(linear.unit_groups) *
              offset_bytes(linear);
  linear.header_bytes = (header + 63) / 64 * 64;
  linear.unit_bytes = linear.header_bytes + linear.unit_groups * linear.group_bytes;
  linear.panel_bytes = groups_of(linear) / linear.unit_groups * linear.unit_bytes;
}

void pack_grouped(Linear& linear, const uint8_t* q, Level scale, Level offset, Store& store,
                  Pool& pool) {
  uint8_t* data = store.take(linear.panel_bytes * panels_of(linear));
  linear.data = data;
  const int groups = groups_of(linear), units = groups / linear.unit_groups;
  const int block = linear.block, quads = block / 4;
  const size_t block_bytes = linear.group_bytes / (linear.group / block);
  each_panel(linear, pool, [&](int panel) {
    const int first = panel * kPanel;
    for (int g = 0; g < groups; ++g) {
      const int unit = g / linear.unit_groups, inside = g % linear.unit_groups;
      uint8_t* header = data + panel * linear.panel_bytes + unit * linear.unit_bytes;
      uint8_t* values = header + linear.header_bytes + inside * linear.group_bytes;
      if (linear.two_level) {
        copy_lanes(scale.supers + unit * 2, units * 2, 2, first, linear.outputs, header);
        if (linear.has_offset)
          copy_lanes(offset.supers + unit * 2, units * 2, 2, first, linear.outputs, header + 32);
        header += linear.has_offset ? 64 : 32;
      }
      copy_lanes(scale.values + static_cast<size_t>(g) * scale.size,
                 static_cast<size_t>(groups) * scale.size, scale.size, first, linear.outputs,
                 header + inside * 16 * scale.size);
      header += linear.unit_groups * 16 * scale.size;
      if (linear.has_offset)
        copy_lanes(offset.values + static_cast<size_t>(g) * offset.size,
                   static_cast<size_t>(groups) * offset.size, offset.size, first, linear.outputs,
                   header + inside * 16 * offset.size);
      for (int k = 0; k < linear.group; k += block, values += block_bytes) {
        uint8_t vectors[16][64] = {};
        const int from = g * linear.group + k;
        const int count = std::max(0, std::min(block, linear.inputs - from));
        for (int lane = 0; lane < kPanel && first + lane < linear.outputs; ++lane) {
          const uint8_t* row = q + static_cast<size_t>(first + lane) * linear.inputs + from;
          int i = 0;
          for (; i + 4 <= count; i += 4) std::memcpy(vectors[i / 4] + lane * 4, row + i, 4);
          for (; i < count; ++i) vectors[i / 4][lane * 4 + i % 4] = row[i];
        }
        for (int j = 0; j < quads; ++j)  // stored unsigned
          for (uint8_t& value : vectors[j]) value = static_cast<uint8_t>(value + linear.zero);
        pack_block(vectors, quads, linear.bits, values);
      }
    }
  });
}

void pack_floats(Linear& linear, const uint8_t* values, Store& store, Pool& pool) {
  const int size = linear.format == Format::kFloat32 ? 4 : 2;
  linear.panel_bytes = static_cast<size_t>(linear.padded) * kPanel * size;
  uint8_t* data = store.take(linear.panel_bytes * panels_of(linear));
  linear.data = data;
  const bool pairs = linear.format == Format::kPairs;
  each_panel(linear, pool, [&](int panel) {
    uint8_t* to = data + panel * linear.panel_bytes;
    for (int lane = 0; lane < kPanel && panel * kPanel + lane < linear.outputs; ++lane) {
      const uint8_t* from =
          values + static_cast<size_t>(panel * kPanel + lane) * linear.inputs * size;
      for (int k = 0; k < linear.inputs; ++k) {
        const size_t at = pairs ? (k / 2) * 32 + lane * 2 + k % 2 : k * 16 + lane;
        std::memcpy(to + at * size, from + static_cast<size_t>(k) * size, size);
      }
    }
  });
}

}  // namespace foreword
