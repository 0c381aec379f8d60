//! How many tokens a KV cache of a given size holds: vLLM's own arithmetic (vllm-memory.md 3 and 4).

mod element;
mod state;

use crate::facts::{EngineVersion, ModelConfig};
use crate::units::{Bytes, Tokens};
use element::{kv_element, model_element};
use state::{StateOptions, state_bytes};

/// Version from which printed tokens are concurrency x length, one block is reserved, and two batches
/// may be in flight.
const CONCURRENCY_RULE: (u64, u64) = (0, 21);

/// What the arithmetic depends on beside the model.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KvOptions<'a> {
    pub tensor_parallel: u64,
    pub pipeline_parallel: u64,
    /// Decode context parallel size.
    pub context_parallel: u64,
    /// `--kv-cache-dtype`; `None` or `auto` means the checkpoint's.
    pub dtype: Option<&'a str>,
    /// `--block-size`.
    pub block: Option<u64>,
    pub version: &'a EngineVersion,
    pub device: AttentionDevice,
    /// `--max-num-batched-tokens`, for windows.
    pub batched_tokens: u64,
    /// Does the only sparse backend of these GPUs store its own FP8 form whatever was asked (SM120)?
    pub sparse_is_fp8: bool,
    /// Layers of multi-token prediction in use, and their tokens a step.
    pub prediction_layers: u64,
    pub speculative_tokens: u64,
}

/// What attention runs on, as far as the arithmetic differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AttentionDevice {
    Gpu,
    Cpu {
        /// Does the processor have AMX tiles? vLLM then takes another MLA backend.
        amx: bool,
    },
}

impl AttentionDevice {
    /// The CPU build on a processor with these flags.
    pub(crate) fn cpu(flags: &[String]) -> Self {
        Self::Cpu { amx: flags.iter().any(|flag| flag == "amx_tile") }
    }
}

/// What a group of layers needs for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Need {
    /// A block for each `block` tokens.
    All,
    /// As many as the window and the tokens in flight need.
    Window(u64),
    /// As many as a chunk and the tokens in flight need.
    Chunk(u64),
    /// A fixed number of blocks.
    Fixed(u64),
}

/// The KV cache of one rank: blocks, what they hold, what a request takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KvLayout {
    /// Tokens in one block of a full layer.
    block: u64,
    bytes_per_block: u64,
    /// Groups of layers, each with what a request needs.
    groups: Vec<Need>,
    context_parallel: u64,
    in_flight: u64,
    reserved: u64,
    prints_concurrency: bool,
    /// The formula with its numbers.
    formula: String,
    /// Layers added so that groups have the same size.
    padding: u64,
}

/// Works out the layout; an error says why it is not known.
pub(crate) fn kv_layout(config: &ModelConfig, options: KvOptions<'_>) -> Result<KvLayout, String> {
    if !config.irregular_attention.is_empty() {
        return Err(format!("what its layers keep is not known ({})", config.irregular_attention.join(", ")));
    }
    let forced = options.sparse_is_fp8 && config.mla.is_some() && config.attention.indexer.is_some();
    let element =
        kv_element(config, if forced { Some("fp8_ds_mla") } else { options.dtype }, options.version)?;
    let layout = &config.attention;
    let (token, formula) = match config.mla {
        Some(mla) => {
            let latent = mla.kv_lora_rank.saturating_add(mla.qk_rope_head_dim);
            let index = layout.indexer.map_or(0, |dim| dim + dim.div_ceil(128) * 4);
            let index_text = if index > 0 { format!(" + {index} B index") } else { String::new() };
            let bytes = element.vector(latent);
            let text =
                format!("({} + {} latent = {bytes} B{index_text})", mla.kv_lora_rank, mla.qk_rope_head_dim);
            (bytes.saturating_add(index), text)
        }
        None => {
            let heads = config.kv_heads.ok_or("the number of KV heads is not given")?;
            let dim = config.head_dim.ok_or("the size of a head is not given")?;
            let heads = (heads / options.tensor_parallel.max(1)).max(1);
            let vector = element.vector(dim);
            (heads.saturating_mul(2).saturating_mul(vector), format!("{heads} KV heads x 2 x {vector} B"))
        }
    };
    if token == 0 || token > 1 << 40 {
        return Err("the sizes in config.json make no sense".to_owned());
    }
    let stages = options.pipeline_parallel.max(1);
    let stage = |layers: u64| layers.div_ceil(stages);
    let full = stage(layout.full.saturating_add(options.prediction_layers));
    let mut kinds: Vec<(Need, u64)> = Vec::new();
    if full > 0 {
        kinds.push((Need::All, full));
    }
    if let Some(sliding) = layout.sliding {
        kinds.push((Need::Window(sliding.tokens), stage(sliding.layers)));
    }
    if let Some(chunked) = layout.chunked {
        // Until 0.20 chunked layers were charged as full ones.
        let need = if is_new(&options) { Need::Chunk(chunked.tokens) } else { Need::All };
        kinds.push((need, stage(chunked.layers)));
    }
    let block_given = block_size(config, &options);
    if let Some(cross) = layout.cross {
        kinds.push((Need::Fixed(cross.tokens.div_ceil(block_given)), stage(cross.layers)));
    }
    let mut block = block_given;
    if let Some(state) = layout.state {
        let bytes = state_bytes(
            state.shape,
            StateOptions {
                tensor_parallel: options.tensor_parallel,
                speculative: options.speculative_tokens,
                conv_element: model_element(config),
                state_element: state.state_element.unwrap_or_else(|| model_element(config)),
            },
        );
        let least = if config.mla.is_some() { if is_new(&options) { 128 } else { 64 } } else { 16 };
        let align = block.max(least);
        block = align * bytes.div_ceil(align * token);
        kinds.push((Need::Fixed(2 + options.speculative_tokens), stage(state.layers)));
    }
    merge_alike(&mut kinds);
    if kinds.is_empty() {
        return Err("it has no layers that keep anything".to_owned());
    }
    let (size, groups, padding) = group_layers(&kinds);
    let page = block.checked_mul(token).ok_or("the sizes in config.json make no sense")?;
    let bytes_per_block = page.checked_mul(size).ok_or("the sizes in config.json make no sense")?;
    let layers: u64 = kinds.iter().map(|(_, layers)| layers).sum();
    Ok(KvLayout {
        block,
        bytes_per_block,
        groups,
        context_parallel: options.context_parallel.max(1),
        in_flight: in_flight(&options),
        reserved: u64::from(is_new(&options)),
        prints_concurrency: is_new(&options),
        formula: format!("{layers} layers x {formula} = {} B a token", layers * token),
        padding,
    })
}

fn is_new(options: &KvOptions<'_>) -> bool {
    options.version.is_at_least(CONCURRENCY_RULE.0, CONCURRENCY_RULE.1)
}

/// Tokens in a block (`vllm/platforms/cpu.py` of 0.32): CPU 128; MLA on CPU 16 whatever was asked,
/// except with AMX, whose backend takes any; GPU 16, MLA 64.
fn block_size(config: &ModelConfig, options: &KvOptions<'_>) -> u64 {
    let default = match (options.device, config.mla.is_some()) {
        (AttentionDevice::Cpu { amx: false }, true) => return 16,
        (AttentionDevice::Cpu { .. }, _) => 128,
        (AttentionDevice::Gpu, false) => 16,
        (AttentionDevice::Gpu, true) => 64,
    };
    options.block.unwrap_or(default).max(1)
}

/// Tokens of batches that may be in flight.
fn in_flight(options: &KvOptions<'_>) -> u64 {
    // Scheduling ahead of the running batch: not on CPU (seen with vLLM 0.32).
    let ahead = is_new(options) && options.device == AttentionDevice::Gpu;
    let batches = match (ahead, options.pipeline_parallel.max(1)) {
        (false, stages) => stages,
        (true, 1) => 2,
        (true, stages) => stages + 1,
    };
    batches.saturating_mul(options.batched_tokens)
}

fn merge_alike(kinds: &mut Vec<(Need, u64)>) {
    let mut merged: Vec<(Need, u64)> = Vec::new();
    for (need, layers) in kinds.drain(..) {
        match merged.iter_mut().find(|(known, _)| *known == need) {
            Some((_, count)) => *count += layers,
            None => merged.push((need, layers)),
        }
    }
    *kinds = merged;
}

/// Layers of a group, one entry for each group, padding layers (vLLM `kv_cache_utils.py`,
/// `get_kv_cache_groups`): one kind is one group; otherwise groups have the size of the rarest kind,
/// or of the most frequent one when that is less than half as much again.
fn group_layers(kinds: &[(Need, u64)]) -> (u64, Vec<Need>, u64) {
    if let [(need, layers)] = kinds {
        return (*layers, vec![*need], 0);
    }
    let least = kinds.iter().map(|(_, layers)| *layers).min().unwrap_or(1).max(1);
    let most = kinds.iter().map(|(_, layers)| *layers).max().unwrap_or(1);
    let size = if most * 2 < least * 3 { most } else { least };
    let mut groups = Vec::new();
    let mut padding = 0;
    for (need, layers) in kinds {
        let count = layers.div_ceil(size);
        padding += count * size - layers;
        groups.extend(std::iter::repeat_n(*need, usize::try_from(count).unwrap_or(0)));
    }
    (size, groups, padding)
}

impl KvLayout {
    /// Blocks that a request of this length takes in all groups.
    fn request_blocks(&self, length: u64) -> u64 {
        let blocks = |tokens: u64| tokens.div_ceil(self.block);
        let need = |need: &Need| match *need {
            Need::All => blocks(length.div_ceil(self.context_parallel)),
            Need::Window(window) => blocks(length.min((window - 1).saturating_add(self.in_flight))) + 1,
            Need::Chunk(chunk) => blocks(length.min(chunk.saturating_add(self.in_flight))),
            Need::Fixed(count) => count,
        };
        self.groups.iter().map(need).fold(0, u64::saturating_add)
    }

    /// Blocks that the space holds.
    fn blocks(&self, space: Bytes) -> u64 {
        space.as_u64() / self.bytes_per_block
    }

    /// Requests of this length that the space holds at once.
    #[must_use]
    pub fn concurrency(&self, space: Bytes, length: Tokens) -> f64 {
        self.blocks(space) as f64 / self.request_blocks(length.as_u64()).max(1) as f64
    }

    /// What the engine prints as its KV cache size, for its maximum length.
    #[must_use]
    pub fn printed(&self, space: Bytes, length: Tokens) -> Tokens {
        let blocks = self.blocks(space);
        if self.prints_concurrency {
            let tokens = u128::from(blocks) * u128::from(length.as_u64())
                / u128::from(self.request_blocks(length.as_u64()).max(1));
            Tokens::new(u64::try_from(tokens).unwrap_or(u64::MAX))
        } else {
            let groups = self.groups.len() as u64;
            Tokens::new(
                (blocks / groups.max(1)).saturating_mul(self.block).saturating_mul(self.context_parallel),
            )
        }
    }

    /// The longest request that fits, up to `most`: the same search as the engine's. `None` when not
    /// one token fits.
    #[must_use]
    pub fn longest(&self, space: Bytes, most: Tokens) -> Option<Tokens> {
        let usable = self.blocks(space).saturating_sub(self.reserved);
        let fits = |length: u64| self.request_blocks(length) <= usable;
        if !fits(1) || most.as_u64() == 0 {
            return None;
        }
        let (mut low, mut high) = (1, most.as_u64());
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            if fits(middle) { low = middle } else { high = middle - 1 }
        }
        Some(Tokens::new(low))
    }

    /// Memory that one request of this length needs, the reserved block included.
    #[must_use]
    pub fn needed(&self, length: Tokens) -> Bytes {
        let blocks = self.request_blocks(length.as_u64()).saturating_add(self.reserved);
        Bytes::new(blocks.saturating_mul(self.bytes_per_block))
    }

    /// The formula with its numbers.
    #[must_use]
    pub fn formula(&self) -> &str {
        &self.formula
    }

    /// Layers added so that groups have the same size: memory that holds nothing.
    #[must_use]
    pub const fn padding_layers(&self) -> u64 {
        self.padding
    }
}

#[cfg(test)]
mod recorded;
#[cfg(test)]
mod tests;
