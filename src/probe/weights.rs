//! Headers of weight files → [`WeightInventory`]: bounded reads, never the tensors themselves.

use std::io::{Read as _, Seek as _};

use camino::Utf8Path;

use super::files::open_regular;
use crate::facts::{
    HEADER_PREFIX, MAX_HEADER_BYTES, QuantMarks, SafetensorsError, WeightInventory, parse_safetensors_header,
};

/// Why a weight file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum WeightFileError {
    /// It cannot be read.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// Its header makes no sense.
    #[error(transparent)]
    Header(#[from] SafetensorsError),
    /// A pointer that large-file storage left in place of the file.
    #[error("it is a pointer to the file, not the file: its storage was not fetched")]
    Pointer,
}

/// Adds the tensors of one file.
pub(super) fn read_weight_file(
    path: &Utf8Path,
    layers: Option<u64>,
    inventory: &mut WeightInventory,
    marks: &mut QuantMarks,
    buffer: &mut Vec<u8>,
) -> Result<(), WeightFileError> {
    let mut file = open_regular(path)?;
    let size = file.metadata()?.len();
    let mut prefix = [0_u8; HEADER_PREFIX as usize];
    if size < HEADER_PREFIX {
        return Err(SafetensorsError::Torn { found: size, needed: HEADER_PREFIX }.into());
    }
    file.read_exact(&mut prefix)?;
    if &prefix == b"version " {
        return Err(WeightFileError::Pointer);
    }
    let length = u64::from_le_bytes(prefix);
    if length > MAX_HEADER_BYTES {
        return Err(SafetensorsError::HeaderTooLong { length }.into());
    }
    let needed = HEADER_PREFIX + length;
    if size < needed {
        return Err(SafetensorsError::Torn { found: size, needed }.into());
    }
    buffer.clear();
    file.seek(std::io::SeekFrom::Start(HEADER_PREFIX))?;
    file.take(length).read_to_end(buffer)?;
    parse_safetensors_header(buffer, size, |tensor| {
        let placed = inventory.add(&tensor.name, tensor.bytes, layers);
        marks.add(&tensor.name, tensor.shape.len() > 1, placed);
    })?;
    Ok(())
}
