// One function per preset: the rules that a published system comes down to. docs/presets.md says what each paper does,
// what is done here, and what could not be found out.
#pragma once

#include "compression/presets.h"

namespace thinwire {

PresetRules expand_none(const PresetContext& context);
PresetRules expand_identity(const PresetContext& context);
PresetRules expand_bf16_wire(const PresetContext& context);
PresetRules expand_optimus_cc(const PresetContext& context);
PresetRules expand_optimus_cc_cb(const PresetContext& context);
PresetRules expand_optimus_cc_cb_fe(const PresetContext& context);
PresetRules expand_optimus_cc_cb_no_lep(const PresetContext& context);
PresetRules expand_optimus_cc_emb(const PresetContext& context);
PresetRules expand_naive_zfp(const PresetContext& context);
PresetRules expand_naive_mpc(const PresetContext& context);
PresetRules expand_mzhybrid(const PresetContext& context);
PresetRules expand_zhybrid(const PresetContext& context);
PresetRules expand_zeropp(const PresetContext& context);
PresetRules expand_zero_topo(const PresetContext& context);
PresetRules expand_loco(const PresetContext& context);
PresetRules expand_sdp4bit(const PresetContext& context);
PresetRules expand_tagc(const PresetContext& context);
PresetRules expand_one_bit_adam(const PresetContext& context);
PresetRules expand_powersgd(const PresetContext& context);
PresetRules expand_thinwire(const PresetContext& context);

}  // namespace thinwire
