#include "pass.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstring>

#include "additions.h"
#include "float_state.h"
#include "inputs.h"
#include "schedule.h"

namespace foreword {

size_t product_scratch(int padded, int groups) {
  constexpr size_t kCarried = 64 * 2048, kRest = 65536;  // amx_grouped.inl
  return kCarried + kRest + static_cast<size_t>(groups) * 128 + static_cast<size_t>(padded) * 32;
}

namespace {

constexpr int kFewRows = 4;  // so few are normed by every thread for itself
constexpr int kTogether = 8;  // rows that a thread prepares before it takes others
constexpr int kPanels = 4;    // side by side in products
constexpr int kLayerPhases = 10, kEndPhases = 3;  // calls of `share` and its like

class Runner {
 public:
  Runner(const Ops& ops, const Model& model, const Batch& batch, float* logits, Pool& pool,
         Arena& arena)
      : ops_(ops),
        model_(model),
        batch_(batch),
        logits_(logits),
        pool_(pool),
        additions_(adapter_ops(ops), batch, model.head->activation == Activation::kFloat32) {
    plan(arena);
  }

  void run() {
    pool_.run([this](int thread) { body(thread); });
  }

 private:
  struct alignas(64) Member {  // what a thread owns
    int thread = 0, phase = 0;
    float* line;       // [widest]
    uint8_t* scratch;  // of products and attention
    uint8_t* inputs;   // of a pass of few rows
    float* kept;       // lines as adapters read them, [kTogether][widest]
    float *few_lows, *lows;  // what adapters make of inputs, few rows' and those in use
  };

  void plan(Arena& arena) {
    const Model& m = model_;
    const int rows = batch_.rows;
    queries_ = m.heads * m.dim;
    cached_width_ = m.kv_heads * m.dim;
    hidden_stride_ = round_up(m.hidden, 16);
    qkv_stride_ = round_up(queries_, 16) + 2 * round_up(cached_width_, 16);
    context_stride_ = round_up(queries_, 16);
    inner_stride_ = round_up(m.intermediate, 16);
    const int line = m.heads + 2 * m.kv_heads, rounds = (line + pool_.size() - 1) / pool_.size();
    whole_heads_ = m.dim % kPanel == 0 && (rounds * pool_.size() - line) * 8 <= line;

    size_t inputs = 0, few_inputs = 0, inner_inputs = 0, scratch = 0;
    auto consider = [&](std::initializer_list<const Linear*> linears, int count) {
      inputs = std::max(inputs, Inputs::bytes(linears, count));
      few_inputs = std::max(few_inputs, Inputs::bytes(linears, std::min(count, kFewRows)));
      for (const Linear* linear : linears)
        scratch = std::max(scratch, product_scratch(linear->padded, linear->format ==
                                                    Format::kGrouped ? groups_of(*linear) : 0));
    };
    for (const Layer& l : m.layers) {
      if (l.query) {
        consider({l.query, l.key, l.value}, rows);
        consider({l.output}, rows);
      }
      if (l.gate) {
        consider({l.gate, l.up}, rows);
        consider({l.down}, rows);
        inner_inputs = std::max(inner_inputs, Inputs::bytes({l.down}, rows));
      }
    }
    consider({m.head}, std::max(rows, batch_.wanted));
    attention_.plan(m, batch_, pool_.size());
    scratch = std::max(scratch, attention_.scratch_bytes());

    const int widest = std::max({hidden_stride_, context_stride_, inner_stride_});
    const size_t kept = additions_.any() ? sizeof(float) * widest * kTogether : 0;
    widest_ = widest;
    const size_t floats = static_cast<size_t>(rows) * (hidden_stride_ + qkv_stride_ +
                                                       context_stride_ + 2 * inner_stride_);
    const size_t low = sizeof(float) * additions_.stride(), few_lows = low * std::min(rows, kFewRows);
    const size_t member = widest * 4 + kept + scratch + few_inputs + few_lows + 5 * kPage;
    arena.reset(floats * 4 + inputs + inner_inputs + pool_.size() * member + rows * low +
                attention_.partial_bytes() + 10 * kPage);
    auto take = [&](int stride) {
      return static_cast<float*>(arena.take(static_cast<size_t>(rows) * stride * 4));
    };
    hidden_ = take(hidden_stride_);
    qkv_ = take(qkv_stride_);
    context_ = take(context_stride_);
    gate_ = take(inner_stride_);
    up_ = take(inner_stride_);
    shared_inputs_ = static_cast<uint8_t*>(arena.take(inputs));
    inner_inputs_ = static_cast<uint8_t*>(arena.take(inner_inputs));
    attention_.use(static_cast<float*>(arena.take(attention_.partial_bytes())));
    shared_lows_ = static_cast<float*>(arena.take(rows * low));
    members_.resize(pool_.size());
    for (Member& member : members_) {
      member.line = static_cast<float*>(arena.take(widest * 4));
      member.scratch = static_cast<uint8_t*>(arena.take(scratch));
      member.inputs = static_cast<uint8_t*>(arena.take(few_inputs));
      member.kept = static_cast<float*>(arena.take(kept));
      member.few_lows = static_cast<float*>(arena.take(few_lows));
    }
    tickets_ = std::vector<Ticket>(m.layers.size() * kLayerPhases + kEndPhases);
    ranges_ = std::vector<Ticket>(tickets_.size() * pool_.size());
  }

  // Calls work(begin, end) on pieces of [0, count), each piece once over all threads.
  template <class Work>
  void share(Member& me, int count, int step, const Work& work) {
    Ticket& ticket = tickets_[me.phase++];
    while (true) {
      const int begin = ticket.next.fetch_add(step, std::memory_order_relaxed);
      if (begin >= count) return;
      work(begin, std::min(begin + step, count));
    }
  }

  // As share, for panels of weights: each thread walks through a stretch of its own, so that what
  // it asks for from memory ahead of time is its own, and helps the others in the end. Pieces
  // start at multiples of `unit` panels.
  template <class Work>
  void share_panels(Member& me, int count, int unit, const Work& work) {
    const int threads = pool_.size(), phase = me.phase++, units = (count + unit - 1) / unit;
    const int most = std::max(1, 64 / unit);
    const int step = std::min(most, std::max(1, units / (threads * 6)));
    for (int turn = 0; turn < threads; ++turn) {
      const int owner = (me.thread + turn) % threads;
      const int first = units * owner / threads, last = units * (owner + 1) / threads;
      Ticket& ticket = ranges_[phase * threads + owner];
      while (true) {
        const int begin = first + ticket.next.fetch_add(step, std::memory_order_relaxed);
        if (begin >= last) break;
        work(begin * unit, std::min(std::min(begin + step, last) * unit, count));
      }
    }
  }

  void body(int thread) {
    FloatState state(true);
    Member& me = members_[thread];
    me.thread = thread;
    const Model& m = model_;
    share(me, batch_.rows, 1, [&](int row, int) {
      ops_.embed(*m.embedding, batch_.tokens[row], hidden_ + row * hidden_stride_);
    });
    pool_.barrier();
    for (size_t index = 0; index < m.layers.size(); ++index) layer(me, index);
    if (batch_.wanted) head(me);
    assert(me.phase <= static_cast<int>(tickets_.size()));
  }

  // Prepares rows for products, adapters' among them: each thread all rows when few, else shared
  // out.
  template <class Line>
  void prepare(Member& me, Inputs& inputs, std::initializer_list<const Linear*> linears, int rows,
               int n, Parts parts, const Line& line) {
    const bool alone = rows <= kFewRows;
    inputs.make(linears, rows, alone ? me.inputs : shared_inputs_);
    me.lows = alone ? me.few_lows : shared_lows_;
    const auto some = [&](int begin, int end) {
      for (int row = begin; row < end; ++row) {
        const float* x = line(row);
        inputs.fill(ops_, x, n, row);
        if (parts.first < parts.last)
          additions_.keep(x, n, row, me.kept + (row - begin) * static_cast<size_t>(widest_));
      }
      additions_.lower(me.kept, widest_, parts, begin, end, me.lows);
    };
    if (alone) {
      ++me.phase;
      some(0, rows);
      return;
    }
    const int pieces = additions_.any() ? pool_.size() : 4 * pool_.size();
    share(me, rows, std::min(kTogether, std::max(1, rows / pieces)), some);
    pool_.barrier();
  }

  void layer(Member& me, size_t index) {
    const Layer& l = model_.layers[index];
    if (l.query) attention(me, l, index);
    if (l.gate) mlp(me, l, index);
  }

  void attention(Member& me, const Layer& l, size_t index) {
    const Model& m = model_;
    const int rows = batch_.rows;
    Inputs inputs;
    const Parts parts{index, kQuery, kOutput};
    prepare(me, inputs, {l.query, l.key, l.value}, rows, m.hidden, parts, [&](int row) {
      ops_.norm(hidden_ + row * hidden_stride_, l.attention_norm, m.hidden, m.eps, me.line);
      return me.line;
    });
    project(me, inputs, l, index);
    pool_.barrier();
    if (!whole_heads_) {
      positions(me, l, index);
      pool_.barrier();
    }
    attend(me, inputs, l, index);
    product(me, *l.output, inputs.of(0), {index, kOutput, kGate});
    pool_.barrier();
  }

  void mlp(Member& me, const Layer& l, size_t index) {
    const Model& m = model_;
    const int rows = batch_.rows;
    Inputs inputs;
    const Parts parts{index, kGate, kDown}, last{index, kDown, kParts};
    prepare(me, inputs, {l.gate, l.up}, rows, m.hidden, parts, [&](int row) {
      ops_.norm(hidden_ + row * hidden_stride_, l.mlp_norm, m.hidden, m.eps, me.line);
      return me.line;
    });
    Inputs inner;
    inner.make({l.down}, rows, inner_inputs_);
    const int unit = inner.parts(kPanels * kPanel) ? kPanels : inner.unit() / kPanel;
    const int panels = panels_of(*l.gate);
    const bool ready = panels >= 4 * pool_.size() * unit;
    share_panels(me, panels, ready ? unit : kPanels, [&](int begin, int end) {
      ops_.product(*l.gate, inputs.of(0), begin, end, gate_, inner_stride_, false, me.scratch);
      ops_.product(*l.up, inputs.of(1), begin, end, up_, inner_stride_, false, me.scratch);
      additions_.raise(me.lows, parts, kGate, begin, end, gate_, inner_stride_);
      additions_.raise(me.lows, parts, kUp, begin, end, up_, inner_stride_);
      for (int row = 0; row < rows; ++row) {
        const size_t at = static_cast<size_t>(row) * inner_stride_ + begin * kPanel;
        ops_.gate(gate_ + at, up_ + at, (end - begin) * kPanel);
        if (ready)
          inner.fill(ops_, gate_ + at - begin * kPanel, m.intermediate, begin * kPanel,
                     end * kPanel, row);
      }
    });
    pool_.barrier();
    const auto line = [&](int row) { return gate_ + static_cast<size_t>(row) * inner_stride_; };
    finish(me, inner, *l.down, ready, rows, m.intermediate, last, line);
    product(me, *l.down, inner.of(0), last);
    pool_.barrier();
  }

  // Where inputs are ready, what adapters read of them may be missing.
  template <class Line>
  void finish(Member& me, Inputs& inputs, const Linear& linear, bool ready, int rows, int n,
              Parts parts, const Line& line) {
    Inputs none;
    if (!ready)
      prepare(me, inputs, {&linear}, rows, n, parts, line);
    else if (additions_.any())
      prepare(me, none, {}, rows, n, parts, line);
  }

  // Adds a product to the residual.
  void product(Member& me, const Linear& linear, const Rows& rows, Parts parts) {
    share_panels(me, panels_of(linear), kPanels, [&](int begin, int end) {
      ops_.product(linear, rows, begin, end, hidden_, hidden_stride_, true, me.scratch);
      additions_.raise(me.lows, parts, parts.first, begin, end, hidden_, hidden_stride_);
    });
  }

  // Queries, keys and values, side by side, each in columns from a multiple of 16 on. Where heads
  // are whole panels whoever computes a head also gives it its position.
  void project(Member& me, const Inputs& inputs, const Layer& l, size_t index) {
    const Linear* linears[3] = {l.query, l.key, l.value};
    int total = 0;
    for (const Linear* linear : linears) total += panels_of(*linear);
    const int head = model_.dim / kPanel;
    const Parts parts{index, kQuery, kOutput};
    share_panels(me, total, whole_heads_ ? head : kPanels, [&](int begin, int end) {
      int first = 0;
      for (int i = 0; i < 3; ++i) {
        const int panels = panels_of(*linears[i]);
        const int from = std::max(begin - first, 0), to = std::min(end - first, panels);
        if (from < to) {
          float* out = qkv_ + first * kPanel;
          ops_.product(*linears[i], inputs.of(i), from, to, out, qkv_stride_, false, me.scratch);
          additions_.raise(me.lows, parts, kQuery + i, from, to, out, qkv_stride_);
        }
        first += panels;
      }
      for (int row = 0; row < batch_.rows && whole_heads_; ++row)
        for (int at = begin / head; at < end / head; ++at) position(me, l, index, row, at);
    });
  }

  // Attention, and the input of the product after it.
  void attend(Member& me, Inputs& inputs, const Layer& l, size_t index) {
    const Model& m = model_;
    inputs.make({l.output}, batch_.rows, shared_inputs_);
    const int together = m.heads / m.kv_heads * m.dim;
    const bool ready = !attention_.split() && inputs.parts(together);
    attention_.run(me.phase, tickets_, ops_, m, batch_, index, qkv_, qkv_stride_, context_,
                   context_stride_, me.scratch, [&](int row, int from, int to) {
                     if (ready)
                       inputs.fill(ops_, context_ + row * context_stride_, queries_, from, to, row);
                   });
    pool_.barrier();
    const Parts parts{index, kOutput, kGate};
    finish(me, inputs, *l.output, ready, batch_.rows, queries_, parts, [&](int row) {
      float* line = context_ + row * context_stride_;
      if (!attention_.split()) return line;
      attention_.join(ops_, m, row, l.window, me.line);
      return me.line;
    });
  }

  // Norm of heads, rotary, and K and V into the pool.
  void positions(Member& me, const Layer& l, size_t index) {
    const int heads = model_.heads + 2 * model_.kv_heads;
    share(me, batch_.rows * heads, std::max(1, heads / 2), [&](int begin, int end) {
      for (int item = begin; item < end; ++item)
        position(me, l, index, item / heads, item % heads);
    });
  }

  // `head`: of the queries, then of the keys, then of the values.
  void position(Member& me, const Layer& l, size_t index, int row, int head) {
    const Model& m = model_;
    const int keys_at = round_up(queries_, 16), values_at = keys_at + round_up(cached_width_, 16);
    const size_t head_bytes = kv_head_bytes(m.kv_format, m.dim);
    float* line = qkv_ + static_cast<size_t>(row) * qkv_stride_;
    const size_t angle = static_cast<size_t>(batch_.positions[row]) * (m.dim / 2);
    const size_t slot = static_cast<size_t>(batch_.slots[row]) * m.kv_heads;
    if (head < m.heads) {
      turn(me, line + head * m.dim, l.query_norm, angle);
    } else if (head < m.heads + m.kv_heads) {
      const int number = head - m.heads;
      float* key = line + keys_at + number * m.dim;
      turn(me, key, l.key_norm, angle);
      ops_.store_kv(key, batch_.keys[index] + (slot + number) * head_bytes, m.dim, m.kv_format);
    } else {
      const int number = head - m.heads - m.kv_heads;
      ops_.store_kv(line + values_at + number * m.dim,
                    batch_.values[index] + (slot + number) * head_bytes, m.dim, m.kv_format);
    }
  }

  void turn(Member& me, float* head, const float* norm, size_t angle) {
    if (norm) {
      std::memcpy(me.line, head, sizeof(float) * model_.dim);
      ops_.norm(me.line, norm, model_.dim, model_.eps, me.line);
      std::memcpy(head, me.line, sizeof(float) * model_.dim);
    }
    ops_.rotate(head, model_.cos + angle, model_.sin + angle, model_.dim);
  }

  void head(Member& me) {
    const Model& m = model_;
    Inputs inputs;
    prepare(me, inputs, {m.head}, batch_.wanted, m.hidden, {0, kParts, kParts}, [&](int row) {
      const float* line = hidden_ + batch_.logit_rows[row] * hidden_stride_;
      ops_.norm(line, m.norm, m.hidden, m.eps, me.line);
      return me.line;
    });
    share_panels(me, panels_of(*m.head), kPanels, [&](int begin, int end) {
      ops_.product(*m.head, inputs.of(0), begin, end, logits_, m.head->outputs, false, me.scratch);
    });
  }

  const Ops& ops_;
  const Model& model_;
  const Batch& batch_;
  float* logits_;
  Pool& pool_;
  Attention attention_;
  const Additions additions_;
  std::vector<Member> members_;
  std::vector<Ticket> tickets_, ranges_;  // [phase], [phase][thread]
  int queries_, cached_width_, hidden_stride_, qkv_stride_, context_stride_, inner_stride_,
      widest_;
  bool whole_heads_;  // a head is computed by one thread
  float *hidden_, *qkv_, *context_, *gate_, *up_;
  uint8_t *shared_inputs_, *inner_inputs_;
  float* shared_lows_;
};

}  // namespace

void run_pass(const Ops& ops, const Model& model, const Batch& batch, float* logits, Pool& pool,
              Arena& arena) {
  if (!batch.rows) return;
  Runner(ops, model, batch, logits, pool, arena).run();
}

}  // namespace foreword
