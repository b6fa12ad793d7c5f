//! Maps of tunnel options: which option (class, type) is which `tun_metadata` field
//! (`NXT_TLV_TABLE_MOD`).

/// One entry of a map.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TlvMapping {
    /// The option's class.
    pub class: u16,
    /// Its type.
    pub kind: u8,
    /// Bytes of its body: 0 to 124, in fours.
    pub length: u8,
    /// The field, 0 to 63.
    pub field: u16,
}

/// What becomes of entries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u16)]
pub enum TlvCommand {
    /// They are added.
    Add = 0,
    /// They are removed, by their fields.
    Delete = 1,
    /// All there are go.
    Clear = 2,
}

/// A change of a map.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TlvTableMod {
    /// What to do.
    pub command: TlvCommand,
    /// With which entries.
    pub mappings: Vec<TlvMapping>,
}

/// A map.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TlvTable {
    /// Bytes that all options together may have.
    pub max_space: u32,
    /// Fields that there are.
    pub max_fields: u16,
    /// The entries, ascending by field.
    pub mappings: Vec<TlvMapping>,
}
