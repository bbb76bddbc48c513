"""Redaction: mask spans, split examples into public and private, and write verifiable files.

Guarantees: no character inside a span survives masking, and an example with a mask is private. An unfinished folder is
never taken for a finished one, and one flipped byte is detected. Callers need not know whether a run is encrypted.
"""

from redactory.redaction.encryption import RunKey as RunKey
from redactory.redaction.encryption import find_run_key as find_run_key
from redactory.redaction.encryption import get_or_create_run_key as get_or_create_run_key
from redactory.redaction.encryption import read_secret as read_secret
from redactory.redaction.encryption import write_secret as write_secret
from redactory.redaction.folder import ModelFolder as ModelFolder
from redactory.redaction.folder import RunFolder as RunFolder
from redactory.redaction.folder import SealedFolder as SealedFolder
from redactory.redaction.folder import format_part_name as format_part_name
from redactory.redaction.mask import MASK as MASK
from redactory.redaction.mask import PRIVATE as PRIVATE
from redactory.redaction.mask import PUBLIC as PUBLIC
from redactory.redaction.mask import RoutingDecision as RoutingDecision
from redactory.redaction.mask import mask_intervals as mask_intervals
from redactory.redaction.mask import merge_document_decisions as merge_document_decisions
from redactory.redaction.mask import merge_intervals as merge_intervals
from redactory.redaction.mask import route_example as route_example
from redactory.redaction.sealing import is_finished as is_finished
from redactory.redaction.sealing import is_result_for as is_result_for
from redactory.redaction.sealing import list_broken_files as list_broken_files
from redactory.redaction.sealing import list_files as list_files
from redactory.redaction.sealing import read_manifest as read_manifest
from redactory.redaction.sealing import read_result as read_result
from redactory.redaction.sealing import require_regular_files as require_regular_files
from redactory.redaction.sealing import seal_folder as seal_folder
from redactory.redaction.sealing import write_manifest as write_manifest
from redactory.redaction.sealing import write_success as write_success
from redactory.redaction.shards import count_part_rows as count_part_rows
from redactory.redaction.shards import is_encrypted as is_encrypted
from redactory.redaction.shards import list_parts as list_parts
from redactory.redaction.shards import read_batches as read_batches
from redactory.redaction.shards import read_column as read_column
from redactory.redaction.shards import read_content_sha256 as read_content_sha256
from redactory.redaction.shards import read_id_range as read_id_range
from redactory.redaction.shards import read_part as read_part
from redactory.redaction.shards import read_part_schema as read_part_schema
from redactory.redaction.shards import write_part as write_part
from redactory.redaction.values import ValueDigests as ValueDigests
from redactory.redaction.values import find_unmasked_labels as find_unmasked_labels
