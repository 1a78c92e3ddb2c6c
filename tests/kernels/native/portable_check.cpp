// A few products and element-wise ops of the portable unit on fixed numbers, printed to the bit:
// another processor must print the same.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

#include "pack.h"
#include "pass.h"

using namespace foreword;

static uint32_t state = 12345;
static uint32_t next() { return state = state * 1664525u + 1013904223u; }
static float number() { return static_cast<int32_t>(next()) / 2147483648.0f; }

static void print(const char* what, const std::vector<float>& values) {
  uint64_t hash = 1469598103934665603ull;
  for (float value : values) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    hash = (hash ^ bits) * 1099511628211ull;
  }
  uint32_t first;
  std::memcpy(&first, &values[0], 4);
  std::printf("%s %016llx first %08x\n", what, static_cast<unsigned long long>(hash), first);
}

static void product(const char* what, const Linear& linear, int rows) {
  const Ops& ops = ops_portable();
  const int groups = linear.group ? groups_of(linear) : 0, blocks = round_up(rows, 16);
  std::vector<float> values(blocks * linear.padded), scales(blocks * groups + 1),
      sums(blocks * groups + 1), line(linear.padded + 16), out(rows * linear.outputs);
  std::vector<int32_t> isums(blocks * groups + 1);
  std::vector<uint8_t> scratch(product_scratch(linear.padded, groups) + 64);
  Rows made{linear.activation, rows, linear.padded, linear.group, linear.block,
            reinterpret_cast<uint8_t*>(values.data()), scales.data(), sums.data(), isums.data()};
  for (int row = 0; row < rows; ++row) {
    for (int i = 0; i < linear.inputs; ++i) line[i] = number();
    ops.prepare(line.data(), linear.inputs, 0, linear.padded, row, made);
  }
  ops.product(linear, made, 0, panels_of(linear), out.data(), linear.outputs, false,
              scratch.data());
  print(what, out);
}

int main() {
  Store store;
  Pool pool(2);
  const int outputs = 40, inputs = 128;
  std::vector<float> floats(outputs * inputs);
  for (float& value : floats) value = number();
  Linear plain{};
  plain.format = Format::kFloat32;
  plain.activation = Activation::kFloat32;
  plain.outputs = outputs, plain.inputs = plain.padded = inputs;
  pack_floats(plain, reinterpret_cast<const uint8_t*>(floats.data()), store, pool);
  for (int rows : {1, 5, 17}) product("float32", plain, rows);

  std::vector<uint8_t> q(outputs * inputs);
  std::vector<float> scale(outputs * inputs / 32), offset(scale.size());
  for (float& value : scale) value = number();
  for (float& value : offset) value = number();
  for (int bits : {4, 5, 6, 8})
    for (Activation kind : {Activation::kA8, Activation::kA16}) {
      for (uint8_t& value : q) value = static_cast<uint8_t>((next() >> 20) & ((1u << bits) - 1));
      Linear grouped{};
      grouped.format = Format::kGrouped;
      grouped.activation = kind;
      grouped.outputs = outputs, grouped.inputs = grouped.padded = inputs;
      grouped.bits = bits, grouped.group = 32, grouped.unit_groups = 1;
      grouped.wide_scale = grouped.has_offset = grouped.wide_offset = true;
      plan_grouped(grouped);
      pack_grouped(grouped, q.data(), {reinterpret_cast<const uint8_t*>(scale.data()), 4, nullptr},
                   {reinterpret_cast<const uint8_t*>(offset.data()), 4, nullptr}, store, pool);
      product(kind == Activation::kA8 ? "a8" : "a16", grouped, 5);
    }

  const Ops& ops = ops_portable();
  std::vector<float> x(128), weight(128), out(128);
  for (float& value : x) value = 8 * number();
  for (float& value : weight) value = number();
  ops.norm(x.data(), weight.data(), 128, 1e-5f, out.data());
  print("norm", out);
  ops.gate(x.data(), weight.data(), 128);
  print("gate", x);
  ops.rotate(x.data(), weight.data(), weight.data() + 32, 64);
  print("rotate", x);
  return 0;
}
