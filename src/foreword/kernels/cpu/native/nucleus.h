// Which ids a filter keeps, as the last key that it keeps.
#pragma once
#include "logit_row.h"

namespace foreword {

// A float32 that no value within `nats` temperatures of the highest is below; -inf for no bound.
float within(double peak, double temperature, double nats);

// top-p over the ids whose key is at most `last`: the key of the last one kept. The shortest prefix
// in the order whose running sum of weight / total reaches top_p; all of it if none does. A cut
// below every id whose weight is at least `least` may be reported as `last`: whoever drops those
// anyway need not know where it is.
Key nucleus(const LogitRow& row, double temperature, double top_p, Key last, double least);

}  // namespace foreword
