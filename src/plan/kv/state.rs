//! Bytes of recurrent state of one layer on one rank (vllm-memory.md 3.4).

use crate::facts::StateShape;

/// What state bytes depend on.
#[derive(Debug, Clone, Copy)]
pub(super) struct StateOptions {
    pub tensor_parallel: u64,
    /// Speculative tokens of a step widen the convolution.
    pub speculative: u64,
    /// Bytes of an element of the convolution.
    pub conv_element: u64,
    /// Bytes of an element of the recurrent state.
    pub state_element: u64,
}

/// Convolution and recurrent state together.
pub(super) fn state_bytes(shape: StateShape, options: StateOptions) -> u64 {
    let tp = options.tensor_parallel.max(1);
    let kernel = |conv: u64| conv.saturating_sub(1).saturating_add(options.speculative);
    let (channels, conv, recurrent) = match shape {
        StateShape::Gdn { key_heads, value_heads, key_dim, value_dim, conv } => (
            2 * key_dim * key_heads + value_dim * value_heads,
            conv,
            (value_heads / tp).max(1) * value_dim * key_dim,
        ),
        StateShape::Kda { heads, dim, conv } => (3 * heads * dim, conv, (heads / tp).max(1) * dim * dim),
        StateShape::Mamba2 { heads, dim, groups, state, conv } => {
            // Groups are copied until each rank has one.
            let groups = if groups.is_multiple_of(tp) { groups } else { groups.max(tp) };
            (heads * dim + 2 * groups * state, conv, (heads / tp).max(1) * dim * state)
        }
    };
    channels / tp * kernel(conv) * options.conv_element + recurrent * options.state_element
}
