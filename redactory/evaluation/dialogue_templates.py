"""What is said in a simulated support dialogue: every utterance as a template, grouped by its turn.

A field in braces is a value of the dialogue.  The fields of :data:`SECRET_LABELS` are secrets, every other
one is harmless (``item``, ``when``).  The templates themselves hold no digit and no name of a person,
so that whatever digit stands in a dialogue is a secret.
"""

from __future__ import annotations

from dataclasses import dataclass

SECRET_LABELS = {
    "name": "PERSON",
    "first": "PERSON",
    "phone": "PHONE_NUMBER",
    "address": "ADDRESS",
    "new_address": "ADDRESS",
    "order": "ORDER_NUMBER",
    "tracking": "TRACKING_NUMBER",
    "email": "EMAIL_ADDRESS",
}
"""Field of a template -> label of its span."""

ITEMS = (
    "chair", "floor lamp", "desk", "bookshelf", "kettle", "pair of boots", "rain jacket", "phone case",
    "keyboard", "coffee grinder", "set of plates", "garden hose", "backpack", "blender", "mattress",
    "printer",
)  # fmt: skip
WHEN = ("yesterday", "last week", "a few days ago", "two weeks ago", "several days ago", "last month")

GREETINGS = (
    "Hello, I am the customer support bot. What do you need?",
    "Hello, I am the customer support bot. How can I help?",
    "Hi, welcome to customer support. What can I do for you?",
    "Good day, this is customer support. How may I help you today?",
    "Welcome back to our support chat. What brings you here?",
)
HELLOS = ("Hi.", "Hello.", "Hello robot.", "Hey there.", "Good morning.", "What's up?", "")

ASKS = {
    "name": (
        "May I have your full name?",
        "Please provide your full name.",
        "Could you verify your full name?",
        "Who am I talking to?",
    ),
    "phone": (
        "Ok, may I have your phone number?",
        "Which phone number is on the account?",
        "Could you please also provide your phone number?",
    ),
    "address": (
        "We will need the shipping address as well.",
        "What is the shipping address of the order?",
        "Could you confirm the address on file?",
    ),
    "new_address": (
        "Where should we send it instead?",
        "What is the new delivery address?",
        "Sure. Please give me the new address.",
    ),
    "order": (
        "Could you please also provide your order number?",
        "Do you have the order number at hand?",
        "What is your order number?",
    ),
    "email": (
        "Which e-mail address did you sign up with?",
        "May I have the e-mail address on the account?",
        "Please tell me your e-mail address.",
    ),
}
ANSWERS = {
    "name": (
        "Sure, {name}.",
        "My name's {name}.",
        "Yep - I'm {name}.",
        "{name}.",
        "This is {name} speaking.",
        "It is {name}, thank you.",
    ),
    "phone": (
        "Phone number is {phone}",
        "You can reach me at {phone}.",
        "It's {phone}.",
        "{phone}",
        "My phone number: {phone}.",
    ),
    "address": (
        "My address is {address}.",
        "It should go to {address}.",
        "{address}",
        "I live at {address}.",
    ),
    "new_address": (
        "Please send it to {new_address}.",
        "The new address is {new_address}.",
        "{new_address}, please.",
        "To my sister's place at {new_address}.",
    ),
    "order": (
        "It's {order}.",
        "Order number is {order}.",
        "Yes, it is {order}.",
        "{order}",
        "The confirmation says {order}.",
    ),
    "email": (
        "It's {email}.",
        "I used {email} when I signed up.",
        "{email}",
        "Please write to {email}.",
    ),
}

MORE = (
    "Is there anything else I can help with?",
    "Are you happy about my answer?",
    "Can I do anything else for you?",
)
THANKS = (
    "All good. That's all.",
    "That's it. Thanks!",
    "No, thank you.",
    "Great, bye.",
    "All good. See you.",
)
GOODBYES = ("Goodbye.", "Bye.", "Thank you for calling. Goodbye.", "Have a nice day.")


@dataclass(frozen=True)
class Issue:
    """Why a customer writes: how it begins, what is asked one after another, how it ends."""

    openings: tuple[str, ...]
    asked: tuple[tuple[str, ...], ...]
    resolutions: tuple[str, ...]


TRACKING = Issue(
    openings=(
        "I ordered a {item} {when} but I can't track it.",
        "I placed an order but I don't know if it has been shipped.",
        "Where is my {item}? It was shipped {when}.",
        "The {item} that I ordered {when} never arrived.",
        "Can you tell me when order {order} will be here?",
    ),
    asked=(("name", "phone"), ("name", "address"), ("name", "order"), ("order", "name", "phone")),
    resolutions=(
        "Track your order using your tracking number, {tracking}.",
        "The tracking number is {tracking}.",
        "Your parcel is on its way, the tracking number of your shipment is {tracking}.",
        "Thank you, {first}. The carrier has it under {tracking}.",
    ),
)
REFUND = Issue(
    openings=(
        "I want my money back for the {item} that I bought {when}.",
        "The {item} arrived broken and I would like a refund.",
        "I sent back a {item} {when} and still wait for the refund.",
        "How do I return order {order}?",
    ),
    asked=(("name", "order"), ("order", "email"), ("name", "order", "email")),
    resolutions=(
        "The refund for order {order} has been started.",
        "Done, {first}. We will confirm the refund by e-mail to {email}.",
        "You will see the money on your account within a week.",
        "Please send it back with the label {tracking}, the refund follows.",
    ),
)
DELIVERY = Issue(
    openings=(
        "I need to change where my {item} is delivered.",
        "I moved {when}, can my order go to my new place?",
        "Please do not send the {item} to my office.",
        "Can someone else take my parcel? I am {name} and I will be away.",
    ),
    asked=(("name", "order", "new_address"), ("name", "address", "new_address"), ("order", "new_address")),
    resolutions=(
        "Order {order} will now go to {new_address}.",
        "The driver has been told, {first}.",
        "We changed the address of the shipment {tracking}.",
    ),
)
ACCOUNT = Issue(
    openings=(
        "I cannot log in to my account any more.",
        "Someone has changed the password of my account.",
        "Please delete my account.",
        "I would like to use another e-mail address, {email}, from now on.",
        "My phone number has changed, it is {phone} now.",
    ),
    asked=(("name", "email"), ("email", "phone"), ("name", "phone", "email")),
    resolutions=(
        "We have sent a link to {email}.",
        "A code is on its way to {phone}.",
        "Your account is safe again, {first}.",
        "That has been changed for you.",
    ),
)
NOISE = Issue(
    openings=(
        "The {item} makes a strange noise, is that normal?",
        "Is a strong smell normal for a new {item}?",
    ),
    asked=((),),
    resolutions=(
        "That is normal while it is new. It stops after a few days.",
        "Please write to us again when it has not stopped after a week.",
    ),
)
CARE = Issue(
    openings=("How do I clean the {item}?", "What is the best way to look after the {item}?"),
    asked=((),),
    resolutions=(
        "A soft cloth and warm water are enough.",
        "You find all of that in the manual, under the last heading.",
    ),
)
APP = Issue(
    openings=(
        "The app keeps closing when I open the cart.",
        "Your website does not let me pay for the {item}.",
    ),
    asked=((),),
    resolutions=(
        "Please close it, wait for ten seconds and open it again.",
        "Please install the latest version of the app and try again.",
    ),
)
ISSUES = (TRACKING, REFUND, DELIVERY, ACCOUNT, NOISE, CARE, APP)
ISSUE_WEIGHTS = (40, 18, 14, 14, 5, 5, 5)
"""How often each issue comes up; nobody is asked for a secret in the last three."""
